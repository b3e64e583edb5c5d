#!/bin/sh
# Does by hand what `headway deploy --submit` does. Run it in this folder.
set -eu
gcloud run services replace service.yaml --project my-project --region us-central1
# To end it, and what it costs: headway deploy --down --to cloud-run --project my-project --region us-central1 --name my-leaves
