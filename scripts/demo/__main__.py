"""The phases of the demo model, each resumable: data and tokenizer, training, the draft, evaluation, export."""

import argparse
import shutil
from dataclasses import dataclass
from pathlib import Path

from scripts.demo import dataset, evaluate, export, tokenizer
from scripts.demo.model import ModelConfig
from scripts.demo.train import Stage, Trainer

PHASES = ("tokenizer", "data", "train", "draft", "evaluate", "export")
# Row length, share of long conversations, tokens made, and up to which share of the training time they are used.
ROWS = ((384, 0.0, 12_000_000, 0.3), (640, 0.12, 16_000_000, 0.7), (1024, 0.3, 12_000_000, 1.0))
MODEL = {"d": 256, "layers": 6, "heads": 4, "kv_heads": 2, "ff": 704}
DRAFT = {"d": 128, "layers": 3, "heads": 2, "kv_heads": 1, "ff": 384}
RATE, DRAFT_RATE = 5e-3, 8e-3
DRAFT_SHARE = 0.2
FOLDERS = {"main": "demo", "draft": "demo-draft"}  # of the exported checkpoints


@dataclass(frozen=True)
class Workshop:
    """The working folder and the settings of one run."""

    work: Path
    minutes: float
    processes: int
    items: int
    checkpoints: Path
    anew: bool
    begin: Path | None
    warmth: float
    seed: int

    @property
    def pieces(self) -> Path:
        return self.work / "tokenizer.model"

    def tokenizer(self) -> None:
        if self.pieces.exists():
            return
        if self.begin:
            shutil.copyfile(self.begin / FOLDERS["main"] / "tokenizer.model", self.pieces)
            return
        corpus = self.work / "corpus.txt"
        tokenizer.write_corpus(corpus, dialogues=20_000, seed=7)
        tokenizer.train(corpus, self.pieces)

    def data(self) -> None:
        for length, long_share, tokens, _ in ROWS:
            folder, seed = self.work / f"rows_{length}", length * 1000 + self.seed * 1_000_000
            count = dataset.write_shards(self.pieces, folder, length, long_share, tokens, seed, self.processes)
            print(f"rows of {length} tokens: {count} shards")

    def trainer(self, name: str) -> Trainer:
        vocabulary = tokenizer.load(self.pieces).get_piece_size()
        if name == "draft":
            config, peak, minutes = ModelConfig(vocabulary, **DRAFT), DRAFT_RATE, self.minutes * DRAFT_SHARE
        else:
            config, peak, minutes = ModelConfig(vocabulary, **MODEL), RATE, self.minutes * (1 - DRAFT_SHARE)
        return Trainer(config, self.work / name, self.warmth * peak, minutes * 60)

    def train(self, name: str = "main") -> None:
        trainer = self.trainer(name)
        if not trainer.restore(restart_clock=self.anew) and self.begin:
            trainer.begin(*export.from_hub(self.begin / FOLDERS[name]))
        trainer.run([Stage(self.work / f"rows_{length}", length, until) for length, _, _, until in ROWS])

    def draft(self) -> None:
        self.train("draft")

    def judge(self, name: str) -> evaluate.Judge:
        trainer = self.trainer(name)
        if not trainer.restore():
            raise SystemExit(f"{self.work / name} holds no checkpoint; run the training phase first")
        return evaluate.Judge(trainer.config, trainer.params, tokenizer.load(self.pieces))

    def evaluate(self) -> None:
        judge = self.judge("main")
        scores = evaluate.skill_scores(judge, self.items, seed=99)
        scores |= evaluate.conversation_scores(judge, max(1, self.items // 3), seed=5)
        scores["hand-written messages"] = evaluate.probe_scores(judge)
        evaluate.write(self.work / "scores.json", scores)
        for name, score in scores.items():
            print(f"| {name} | {score.share:.2f} | {score.total} |")
        if (self.work / "draft").exists():
            print(f"draft agreement {evaluate.agreement(judge, self.judge('draft'), self.items, seed=3):.3f}")

    def export(self) -> None:
        for name, folder in FOLDERS.items():
            if (self.work / name).exists():
                judge = self.judge(name)
                size = export.export(judge.config, judge.params, self.pieces, self.checkpoints / folder)
                print(f"{self.checkpoints / folder}: {size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/train_demo", description=__doc__)
    parser.add_argument("phase", choices=(*PHASES, "all"))
    parser.add_argument("--work", type=Path, default=Path(".build/demo"), help="working folder (default .build/demo)")
    parser.add_argument("--minutes", type=float, default=90.0, help="training time, a fifth of it for the draft")
    parser.add_argument("--processes", type=int, default=2, help="that make the data")
    parser.add_argument("--items", type=int, default=60, help="held-out items a skill in the evaluation")
    parser.add_argument("--checkpoints", type=Path, default=Path("configs/checkpoints"), help="where export writes")
    parser.add_argument("--anew", action="store_true", help="train on from the weights there are, by a new schedule")
    parser.add_argument("--begin", type=Path, help="a folder as export writes: its tokenizer and weights to begin with")
    parser.add_argument("--warmth", type=float, default=1.0, help="share of the peak rate; less for a short run on")
    parser.add_argument("--seed", type=int, default=0, help="of the dialogues: another one makes others")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    workshop = Workshop(**{name: value for name, value in vars(args).items() if name != "phase"})
    for phase in PHASES if args.phase == "all" else (args.phase,):
        getattr(workshop, phase)()


if __name__ == "__main__":
    main()
