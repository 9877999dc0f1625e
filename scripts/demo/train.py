"""Training: steps under a rate that follows the clock, in stages of growing row length, resumable from Orbax."""

import math
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from orbax.checkpoint import v1 as orbax
from tqdm import tqdm

from scripts.demo import dataset
from scripts.demo.model import DemoLlama, ModelConfig, Params, grown, initial
from scripts.demo.optimizer import optimizer

TOKENS_A_STEP = 8192
TOKENS_A_PART = 1280  # of a step that are computed at once: what lies between two products then stays in a cache
LEARNED_SHARE = 7 / 16  # of a part's tokens, at most: more are left out by chance
WARM_UP = 100
SAVE_EVERY_SECONDS = 240.0
LONGEST_STEP = 5.0  # seconds that a step may count for: a machine that slept has not trained


@dataclass(frozen=True)
class Stage:
    """A folder of rows of one length, and up to which share of the time it is used."""

    folder: Path
    length: int
    until: float


@dataclass
class Progress:
    """What a checkpoint keeps beside the weights: steps, tokens and the seconds spent."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0


def rate(progress: Progress, budget_seconds: float, peak: float) -> float:
    """Linear warm-up by steps, then a cosine to 2% of the peak by the share of the time that has passed."""
    share = min(1.0, progress.seconds / budget_seconds)
    cosine = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share))
    return peak * cosine * min(1.0, (progress.step + 1) / WARM_UP)


Arrays = dict[str, Array]  # the fields of a dataset.Batch
Step = Callable[[Params, optax.OptState, Arrays, Array], tuple[Params, optax.OptState, Array]]


def loss(config: ModelConfig, params: Params, part: Arrays) -> Array:
    """The sum over what is learned in one part of a step."""
    model = DemoLlama(config, params)
    scores = model.logits(model(part["tokens"], part["segments"], part["positions"], part["spots"]))
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, part["targets"])
    return jnp.sum(losses * part["weights"])


def mean_gradients(config: ModelConfig, params: Params, parts: Arrays) -> tuple[Array, Params]:
    """The loss and its gradients as means over what is learned in all parts, which are stacked along the first axis."""

    def add(sums: tuple[Array, Params], part: Arrays) -> tuple[tuple[Array, Params], None]:
        return jax.tree.map(jnp.add, sums, jax.value_and_grad(partial(loss, config))(params, part)), None

    sums, _ = jax.lax.scan(add, (jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)), parts)
    learned = jnp.maximum(1.0, jnp.sum(parts["weights"]))
    return jax.tree.map(lambda value: value / learned, sums)


def make_step(config: ModelConfig) -> Step:
    update = optimizer().update

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Params, state: optax.OptState, parts: Arrays, rate: Array) -> tuple[Params, optax.OptState, Array]:
        value, gradients = mean_gradients(config, params, parts)
        changes, state = update(gradients, state, params)
        params = jax.tree.map(lambda weight, change: weight - rate * change, params, changes)
        return params, state, value

    return step


class Trainer:
    """One model in training. `folder` keeps its latest checkpoint; a run that finds one goes on from it."""

    def __init__(self, config: ModelConfig, folder: Path, peak: float, budget_seconds: float, seed: int = 0) -> None:
        self.config, self.peak, self.budget = config, peak, budget_seconds
        self.folder = folder.absolute()  # Orbax takes no other
        self.params = initial(config, seed)
        self.state = optimizer().init(self.params)
        self.progress = Progress()
        self.step = make_step(config)
        self.losses: list[float] = []
        folder.mkdir(parents=True, exist_ok=True)

    def _tree(self) -> dict[str, object]:
        numbers = np.asarray([self.progress.step, self.progress.seconds, self.progress.tokens], np.float64)
        return {"params": self.params, "state": self.state, "progress": numbers}

    def restore(self, restart_clock: bool = False) -> bool:
        """Loads the latest checkpoint, if there is one; `restart_clock` starts the schedule anew on its weights."""
        saved = sorted(self.folder.glob("step_*[0-9]"))
        if not saved:
            return False
        tree = orbax.load(saved[-1], self._tree())
        self.params, self.state = tree["params"], tree["state"]
        step, seconds, tokens = np.asarray(tree["progress"])
        self.progress = Progress(int(step), 0.0 if restart_clock else float(seconds), int(tokens))
        return True

    def begin(self, config: ModelConfig, params: Params) -> None:
        """Starts from the weights of another training, which may have fewer layers, down to half as many. Raises
        ValueError where they have another shape."""
        if replace(config, layers=self.config.layers) != self.config:
            raise ValueError(f"the weights to begin with are those of {config}, not of {self.config}")
        self.params = grown(params, self.config.layers)

    def save(self) -> None:
        path = self.folder / f"step_{self.progress.step:08}"
        if path.exists():
            return
        orbax.save(path, self._tree())
        for old in sorted(self.folder.glob("step_*[0-9]"))[:-2]:
            shutil.rmtree(old)

    def run(self, stages: list[Stage], quiet: bool = False) -> None:
        """Trains until the budget is spent; saves every few minutes and at the end, and on SIGINT and SIGTERM."""
        stopped: list[int] = []
        before = {
            kind: signal.signal(kind, lambda number, _: stopped.append(number))
            for kind in (signal.SIGINT, signal.SIGTERM)
        }
        last_save = time.monotonic()
        start = self.progress.seconds
        with tqdm(total=round(self.budget), initial=round(start), unit="s", disable=quiet, mininterval=5) as bar:
            for stage in stages:
                rows = max(1, TOKENS_A_PART // stage.length)
                spots = round(LEARNED_SHARE * rows * stage.length)
                source = dataset.batches(stage.folder, rows, spots, seed=self.progress.step)
                while self.progress.seconds < stage.until * self.budget and not stopped:
                    self.take(list(islice(source, max(1, TOKENS_A_STEP // (rows * stage.length)))))
                    bar.n = round(self.progress.seconds)
                    if self.progress.step % 20 == 0:
                        bar.set_postfix(
                            step=self.progress.step,
                            loss=f"{np.mean(self.losses[-50:]):.4f}",
                            mtok=f"{self.progress.tokens / 1e6:.1f}",
                            length=stage.length,
                        )
                    if time.monotonic() - last_save > SAVE_EVERY_SECONDS:
                        self.save()
                        last_save = time.monotonic()
        self.save()
        for kind, handler in before.items():
            signal.signal(kind, handler)
        if stopped:
            raise SystemExit(f"stopped after step {self.progress.step}; the same command goes on from there")

    def take(self, parts: list[dataset.Batch]) -> None:
        """One step of training on batches of one shape; its time counts towards the budget."""
        began = time.monotonic()
        now = jnp.asarray(rate(self.progress, self.budget, self.peak), jnp.float32)
        stacked = {name: jnp.asarray(np.stack([vars(part)[name] for part in parts])) for name in vars(parts[0])}
        self.params, self.state, value = self.step(self.params, self.state, stacked, now)
        self.losses.append(float(value))
        self.progress.step += 1
        self.progress.tokens += sum(int(np.count_nonzero(part.segments)) for part in parts)
        if self.progress.step > 1:  # the first step compiles
            self.progress.seconds += min(time.monotonic() - began, LONGEST_STEP)
