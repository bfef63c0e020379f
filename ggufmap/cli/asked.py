"""What a command line asks of the preflight, and what `audit` and `check` say of what it found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ggufmap.cli.options import Choice
from ggufmap.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from ggufmap.mapping.memory import RankMemory
    from ggufmap.serving.preflight import Preflight
    from ggufmap.target.devices import World


@dataclass(frozen=True, slots=True)
class Asked:
    """The options that `audit` and `check` share. Raises UsageError where they contradict each other."""

    hf_config: Path | None
    draft: str | None
    mmproj: str | None
    offline: bool
    device: str
    tp: int
    ep: bool
    storage: Choice

    def __post_init__(self) -> None:
        if self.offline and self.world is not None:
            raise UsageError(
                "--offline traces nothing, so --device, --tp and --ep mean nothing",
                hint="Leave out the one or the others.",
            )

    @property
    def world(self) -> World | None:
        """For which GPU, and for a rank of how many; None when nothing is said of either."""
        from ggufmap.target.devices import World

        return World(self.device, self.tp, self.ep) if self.device or self.tp > 1 or self.ep else None

    def look(self, model: str, *, stock: bool = False, model_class: str | None = None) -> Preflight:
        """The preflight of `model`; a family without rows gets inferred ones."""
        from ggufmap.mapping.storage import Storage
        from ggufmap.serving.preflight import preflight

        return preflight(
            model,
            hf_config=self.hf_config,
            draft=self.draft,
            mmproj=self.mmproj,
            offline=self.offline,
            stock=stock,
            world=self.world,
            storage=Storage(self.storage),
            infer_unknown=True,
            model_class=model_class,
        )

    def serve_options(self) -> list[str]:
        """What `ggufmap serve` needs, beside the file, to load it as it is audited."""
        from ggufmap.remote.reference import shown

        given = {"--hf-config": self.hf_config, "--draft": shown(self.draft), "--mmproj": shown(self.mmproj)}
        words = [word for option, value in given.items() if value is not None for word in (option, str(value))]
        return words if self.storage is Choice.AUTO else [*words, "--storage", self.storage.value]


def full_report(found: Preflight, asked: Asked, sizes: Sequence[RankMemory] = ()) -> dict[str, Any]:
    """The JSON report, with the memory of other `sizes`."""
    from ggufmap.report.as_json import plan_report

    return plan_report(
        found.plan,
        config_source=found.config.source,
        assumed=found.config.assumed,
        templates=_templates(found),
        header=found.checkpoint.metadata.listed(),
        sizes=sizes,
        serve_options=asked.serve_options(),
    )


def print_found(console: Console, found: Preflight, asked: Asked) -> None:
    """The same for people."""
    from ggufmap.report.console import print_plan

    print_plan(
        console,
        found.plan,
        config_source=found.config.source,
        assumed=found.config.assumed,
        templates=_templates(found),
        serve_options=asked.serve_options(),
    )


def _templates(found: Preflight) -> list[dict[str, Any]]:
    from ggufmap.modeldir.template import read_templates

    return [template.report() for template in read_templates(found.checkpoint.metadata)]
