"""What is wrong with the settings."""

from __future__ import annotations

from penstock.errors import PenstockError


class SettingsError(PenstockError):
    """One or more bad variables, a readable line each."""

    @property
    def lines(self) -> list[str]:
        """The lines, in the order of the settings table."""
        return str(self).split("\n")
