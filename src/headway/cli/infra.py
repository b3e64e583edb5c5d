"""`headway infra gcp`: print the Terraform that sets up a cloud project for Headway. Nothing is applied."""

from __future__ import annotations

import argparse
from pathlib import Path

from headway.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cloud", choices=["gcp"], help="which cloud")
    parser.add_argument("--project", required=True, metavar="P", help="the project that is billed")
    parser.add_argument(
        "--zone", default="us-central1-a", metavar="Z", help="where machines run (default: us-central1-a)"
    )
    parser.add_argument("--name", default="headway", metavar="N", help="of what is made (default: headway)")
    parser.add_argument("--bucket", default="", metavar="B", help="for runs (default: PROJECT-NAME)")
    parser.add_argument("--namespace", default="default", metavar="NS", help="of Kubernetes, where jobs run")
    parser.add_argument("--secret", action="append", default=[], metavar="S", help="an entry of Secret Manager")
    parser.add_argument("--accelerator", default="T4:1", metavar="A:N", help="of the GPU machines (default: T4:1)")
    parser.add_argument("--machine", metavar="M", help="of the GPU machines (default: the usual one)")
    parser.add_argument("--max-nodes", type=int, default=2, metavar="N", help="GPU machines at once (default: 2)")
    parser.add_argument("--spot", action="store_true", help="cheaper GPU machines that may be taken away")
    parser.add_argument("--billing-account", default="", metavar="ID", help="for a budget alert")
    parser.add_argument(
        "--budget", type=float, default=50.0, metavar="USD", help="a month, for that alert (default: 50)"
    )
    parser.add_argument("--no-cluster", action="store_true", help="without a Kubernetes cluster: Vertex AI only")
    parser.add_argument("--workbench", action="store_true", help="with a notebook instance")
    parser.add_argument("--out", metavar="FILE", help="write it there instead of printing it")


def main(args: argparse.Namespace) -> int:
    from headway.infra.gcp import Wanted, terraform

    kind, gpus, machine = _gpu(args)
    text = terraform(
        Wanted(
            project=args.project,
            zone=args.zone,
            name=args.name,
            bucket=args.bucket,
            namespace=args.namespace,
            secrets=tuple(dict.fromkeys(args.secret)),
            accelerator=kind,
            gpus=gpus,
            machine=machine,
            most_nodes=max(1, args.max_nodes),
            spot=args.spot,
            billing_account=args.billing_account,
            budget_usd=args.budget,
            cluster=not args.no_cluster,
            workbench=args.workbench,
        )
    )
    if args.out:
        Path(args.out).write_text(text)
        print(f"next: terraform init && terraform plan   (in the folder of {args.out})")
    else:
        print(text, end="")
    return 0


def _gpu(args: argparse.Namespace) -> tuple[str, int, str]:
    """Google's word for the accelerator, how many, and the machine."""
    from headway.price.machines import machine_for
    from headway.spec.units import BadUnit, accelerator

    try:
        asked = accelerator(args.accelerator)
    except BadUnit as error:
        raise BadInput(f"--accelerator: {error}", fix="--accelerator T4:1") from None
    usual = machine_for(asked.kind, asked.count)
    if usual is None and not args.machine:
        raise BadInput(f"Google sells no machine with {args.accelerator}", fix="headway prices lists what is sold")
    word = {"A100-80GB": "nvidia-a100-80gb", "H100": "nvidia-h100-80gb", "H100-MEGA": "nvidia-h100-mega-80gb",
            "H200": "nvidia-h200-141gb", "L4": "nvidia-l4", "B200": "nvidia-b200"}  # fmt: skip
    return word.get(asked.kind, f"nvidia-tesla-{asked.kind.lower()}"), asked.count, args.machine or usual or ""
