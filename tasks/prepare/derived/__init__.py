"""Samples of checks that are derived from the first sample of an op (`vary_sample_sizes`); one file per check."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from tasks import checks
from tasks.catalogs.base import Catalog, Failure, Sample
from tasks.checks.derived import Derived
from tasks.model import Group, Vacuous
from tasks.prepare.derived import shapes
from tasks.prepare.derived.parts import Spoilt, explain_model_differs


def derive_samples(
    catalog: Catalog, group: Group, draws: int, skip: Collection[int], first: Callable[[], Sample]
) -> Iterator[Sample]:
    """As `Catalog.samples`, of any check: where it derives them, one for each of its numbers, by ``derive(base, number,
    group, draws)`` of the file of its name, of the op's ``first`` one. A sample that cannot be made comes with a
    failure."""
    check = checks.get_check(group.check)
    if not isinstance(check, Derived):
        yield from catalog.samples(group, draws, skip)
        return
    derive = _find_deriving_function(check)
    plain = replace(group, check=checks.FORWARD)
    asked = _explain_no_other_size(catalog, plain) if check.any_size else None
    base = first() if asked is None else Sample(0, failure=asked)
    whole = _Exported(catalog, plain, base)
    for place, number in enumerate(check.numbers):
        if place in skip:
            yield Sample(number)
            continue
        try:
            if base.failure:
                yield replace(base, index=number)
            elif not check.of_model:
                yield derive(base, number, plain, draws)
            elif (model := whole.model) is None:
                yield Sample(number, failure=Failure.vacuous("the op is no ONNX model"))
            else:
                model = (check.any_size and catalog.any_size(plain)) or model
                yield derive(replace(base, model=model), number, plain, draws)
        except Vacuous as error:
            yield Sample(number, failure=Failure.vacuous(str(error)))
        except Spoilt as error:
            yield Sample(number, failure=Failure("invalid", "sample", "", str(error), error.culprit))
        except Exception as error:
            yield Sample(number, failure=Failure.of(error, "sample"))


class _Exported:
    """The ONNX model of a sample: its own, or what its catalog exports of it, once it is asked for."""

    def __init__(self, catalog: Catalog, plain: Group, base: Sample) -> None:
        self._of = catalog, plain, base

    @functools.cached_property
    def model(self) -> bytes | None:
        """Raises Spoilt where nothing can be exported, or what is exported computes something else."""
        catalog, plain, base = self._of
        if base.model is not None:
            return base.model
        try:
            made = catalog.as_onnx(plain, base)
        except Exception as error:
            raise Spoilt("exporter", str(error)) from None
        if made is not None and (different := explain_model_differs(made, base)):
            raise Spoilt("exporter", f"in float64 the graph is another function than the module: {different}")
        return made


def remake_derived_sample(catalog: Catalog, group: Group, given: Sample, draws: int) -> Sample:
    """As `Catalog.remade`, of any check: where it derives its samples, that of the number ``given`` has. Raises
    Vacuous."""
    check = checks.get_check(group.check)
    if not isinstance(check, Derived):
        return catalog.remade(group, given, draws)
    plain = replace(group, check=checks.FORWARD)
    base = catalog.remade(plain, given, draws)
    return base if base.failure else _find_deriving_function(check)(base, given.index, plain, draws)


def _find_deriving_function(check: Derived) -> Callable[[Sample, int, Group, int], Sample]:
    derive: Callable[[Sample, int, Group, int], Sample] = importlib.import_module(f"{__name__}.{check.name}").derive
    return derive


def _explain_no_other_size(catalog: Catalog, plain: Group) -> Failure | None:
    """Why an op has no other size, where its catalog can be asked that before the reference is made, which takes
    long."""
    try:
        if bare := catalog.bare(plain):
            shapes.vary_sample_sizes(replace(bare, model=catalog.any_size(plain) or bare.model))
    except Vacuous as error:
        return Failure.vacuous(str(error))
    except Exception:  # the sample itself says what is wrong with it
        return None
    return None
