"""A known failure: which failures do not make a run fail, and why. Every report reads some, and needs of a config nothing else."""

from __future__ import annotations

import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Self

import pydantic
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field

from tasks.model import JUDGED, name_statuses
from tasks.model.errors import mask_error_details

if TYPE_CHECKING:
    FailureStatus = str
else:  # what was judged and is a finding
    FailureStatus = Literal[(*name_statuses(status for status in JUDGED if status.finding), "*")]


class ConfigModel(BaseModel):
    """A part of a config: no other keys, and nothing changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KnownFailure(ConfigModel):
    """Failures that do not make a run fail: of which cases, failing in which way (`tasks.model.failing.FailureManner`), for
    how long, and whose they are."""

    op: str = Field(description="which cases, as the next four: a glob, with or without catalog and variant")
    dtype: str = Field(default="*", description="a glob")
    backend: str = Field(default="*", description="a glob; one over several devices covers [them all](#other-devices)")
    check: str = Field(default="*", description="a glob")
    distribution: str = Field(default="*", description="a glob")
    flags: tuple[str, ...] = Field(
        default=(), description="globs, each of which must match a word of the row's `flags`"
    )
    reduced: tuple[str, ...] = Field(
        default=(),
        description="of generated cases: exactly the ops of the [reduced case](minimise.md), whatever case it was found in",
    )
    status: FailureStatus = Field(default="*", description="how it fails; `wrong` covers `imprecise` too")
    kind: str | tuple[str, ...] = Field(default="*", description="a glob, or a list of them")
    stage: str = Field(
        default="*", description="of an exception or a process that died (wrong numbers have none): a glob"
    )
    error_type: str = Field(default="*", description="of an exception: a glob")
    error: str = Field(
        default="",
        description="of an exception: a part of its text, compared without numbers, paths and names in quotes",
    )
    cause: str = Field(default="*", description="the error model that explains the result: a glob")
    culprit: str = Field(default="*", description="the node or pass to blame: a glob")
    seen: tuple[str, ...] = Field(
        default=(),
        description="where `backend` names several devices: globs of those on which it was seen; none: all of them",
    )
    versions: str = Field(default="", description='of the backend\'s runtime, for which it holds: `">=1.20,<1.25"`')
    expires: str = Field(default="", description="the last day on which it covers anything: `2027-01-31`")
    fault: Literal["backend", "exporter", "suite", "open"] = Field(
        default="backend",
        description="whose it is: `backend`; `exporter` (it made another function); `suite` (it expects the wrong thing);"
        " `open` (not settled). Only its own fault counts against a backend",
    )
    reason: str = Field(min_length=1, description="why it fails")
    owner: str = Field(default="", description="who takes care of it")
    link: str = Field(default="", description="where it is reported")

    @pydantic.field_validator("error")
    @classmethod
    def _refuse_error_without_words(cls, value: str) -> str:
        if value and not mask_error_details(value):
            raise ValueError(
                f"{value!r} has only parts in which similar errors differ: numbers, paths, quoted names; omit it"
            )
        return value

    @pydantic.field_validator("versions", mode="before")
    @classmethod
    def _check_version_specifiers(cls, value: Any) -> Any:
        try:
            SpecifierSet(value if isinstance(value, str) else "")
        except InvalidSpecifier:
            raise ValueError(f'{value!r} is not a pip version range, e.g. ">=1.20,<1.25" or "==1.31.*"') from None
        return value

    @pydantic.field_validator("expires", mode="before")
    @classmethod
    def _check_expiry_day(cls, value: Any) -> Any:
        try:
            return str(datetime.date.fromisoformat(str(value))) if value else ""
        except ValueError:
            raise ValueError(f"{value!r} is not a date; write 2027-01-31") from None

    @pydantic.field_validator("seen", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _check_seen_failure_is_specific(self) -> Self:
        if self.seen and not self.error and "*" in (self.status, self.kind):
            raise ValueError(
                "with seen it covers devices that nobody has looked at: say how it fails, by status and kind or by error"
            )
        strange = [x for x in self.seen if not (fnmatchcase(x, self.backend) or fnmatchcase(self.backend, x))]
        if strange:
            raise ValueError(f"seen: {strange[0]!r} is none of the backends {self.backend!r}")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _dump_changed_fields(self, handler: Any) -> dict[str, Any]:
        """What differs from the defaults: a run's record has hundreds of them."""
        told: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {name: value for name, value in told.items() if value not in (fields[name].default, [], ())}
