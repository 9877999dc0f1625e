"""Every deployment that names the machine that it is for, planned for that machine."""

from collections.abc import Iterator
from pathlib import Path

from serving.config import load_deployment
from serving.errors import ConfigError
from serving.planner.deployment_plan import make_plan


def table(folder: Path) -> Iterator[bool]:
    print("| deployment | topology | weights, GiB | temporaries, GiB | context that fits | all-reduces a step | fits |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(folder.glob("*.toml")):
        deployment = load_deployment(path)
        if deployment.plan.topology is None:
            continue
        title = f"| {path.stem} | {deployment.plan.topology} |"
        try:
            plan = make_plan(deployment, None)
        except ConfigError as error:
            print(f"{title} does not compile: {error.message} | | | | no |", flush=True)
            yield False
            continue
        smallest = plan.steps[min(plan.steps)] if plan.steps else None
        sums = sum(count for one, count in smallest.collectives.items() if one.kind == "all-reduce") if smallest else 0
        sizes = f"{plan.holdings.weights / 2**30:.1f} | {plan.temporaries / 2**30:.2f}"
        print(f"{title} {sizes} | {plan.positions:,} | {sums} | {'yes' if plan.fits else 'no'} |", flush=True)
        yield plan.fits
