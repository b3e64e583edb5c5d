#!/bin/sh
# Does by hand what `headway deploy --submit` does. Run it in this folder.
set -eu
MODEL=$(gcloud ai models upload --project my-project --region us-central1 --display-name my-leaves --labels headway_deployment=my-leaves \
  --container-image-uri us-docker.pkg.dev/my-project/repo/leaves@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa --container-ports 8080 --container-predict-route /predict \
  --container-health-route /health --format 'value(model)')
ENDPOINT=$(gcloud ai endpoints create --project my-project --region us-central1 --display-name my-leaves --labels headway_deployment=my-leaves \
  --format 'value(name)')
gcloud ai endpoints deploy-model "$ENDPOINT" --project my-project --region us-central1 --model "$MODEL" --display-name my-leaves \
  --machine-type n1-standard-4 --min-replica-count 1 --max-replica-count 3 \
  --traffic-split 0=100
# To end it, and what it costs: headway deploy --down --to vertex --project my-project --region us-central1 --name my-leaves
