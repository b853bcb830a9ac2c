"""How a demo ended: both acts together."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.demo.capture_act import CaptureOutcome
from penstock.demo.shapes_act import ShapesOutcome


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """What the views show, and the exit code follows."""

    capture: CaptureOutcome
    shapes: ShapesOutcome
    stays: bool = False
    """Whether everything keeps running."""

    @property
    def holds(self) -> bool:
        """Whether everything is proved."""
        return self.capture.proof.holds and self.shapes.proof.holds

    def findings(self) -> list[str]:
        """A line for each thing that is wrong."""
        return [*self.capture.proof.findings(), *self.shapes.proof.findings]
