"""Kinds of a case that is `invalid`, merely `imprecise` or `wrong` which more than one place names; others are named where they are seen."""

from __future__ import annotations

#: Two oracles of a case disagree, or one is none.
KIND_ORACLE = "oracle"
#: Nobody independent stands with the reference of a generated case, which may be at fault. Rows of older lakes have
#: KIND_ORACLE.
KIND_SUSPECT = "suspect"
#: What a generated case asks, the specification leaves open.
KIND_SPEC = "spec"
#: The generator failed to make a case, or its reference: a fault of the farm, of this case alone.
KIND_UNDRAWN = "undrawn"

#: `wrong`: the results are within the limit of the policy, and outside the tolerance that the case brings itself.
KIND_TOLERANCE = "tolerance"

#: What a kernel is to be timed against does not run, or is itself wrong.
KIND_BASELINE = "baseline"

#: `wrong`, check speedup. The bytes of another call are returned for other inputs; the result of a call on inputs that
#: it had not met is another one than it has to be; outputs changed after the call was over.
KIND_KEPT_RESULT, KIND_OTHER_INPUTS, KIND_LATE = "kept", "other inputs", "late"

#: `wrong`, check speedup: a call is faster than the device can move its bytes, or do its operations.
KIND_ROOFLINE = "roofline"

#: `wrong`: the results break what the user promises of every result (`invariants`).
KIND_INVARIANT = "invariant"

#: `imprecise`: the results are within the limit, and break what mathematics promises of the op.
KIND_PROPERTY = "property"
#: `imprecise`: the results are within the limit, and nearly all off to the same side.
KIND_BIASED = "biased"
#: `imprecise`: the results are within the limit, and zeros have the wrong sign; where a policy asks for that.
KIND_ZERO = "zero sign"

#: `imprecise`: sums lost digits. Beyond the limit, and no further off than the adders of the device's matrix units
#: leave them, which keep fewer bits; or within it, and added in 16 bits where float32's adder would have left less.
KIND_ACCUMULATOR = "accumulator"

#: `wrong`: the results of a sum are further off than the arithmetic of their own backend leaves them, by its passport,
#: however near they are.
KIND_ARITHMETIC = "arithmetic"

#: `imprecise`: a derivative beyond the limit, and no further off than being computed from a rounded result of the
#: forward pass leaves it, which nobody has declared (`kept`).
KIND_KEPT = "kept"

#: `wrong` or `imprecise`: the numbers are those of the program without a cast to a narrower dtype that it asks for.
#: Within the limit, `imprecise`: of a program that takes what its casts have lost, so that their digits count.
KIND_CAST = "cast"

#: Codes of a cause, the column `cause_code` beside the sentence in `cause`. The op's own formula, computed with fewer
#: digits or in a way that loses them: its exact value is then the reference.
CAUSE_ARITHMETIC = "arithmetic"
#: A cast that was asked for is missing; a derivative was computed from a rounded result. Both are kinds of rows as
#: well.
CAUSE_CAST, CAUSE_KEPT = KIND_CAST, KIND_KEPT
#: The same terms are added in two orders, which give the two results: why a row has other bytes in another batch.
CAUSE_ORDER = "order"
#: Any other error model: another axis, a term left out, a wrong sign, …
CAUSE_OTHER = "other"

#: Of results that are off by their numbers, and measured.
OF_NUMBERS = ("numbers", "flip", KIND_CAST)
#: Of results that pass, or are off by their numbers and by nothing else that is known: they show how far rounding goes.
OF_ROUNDING = ("", "numbers")

#: `wrong`, check serving: another way to the same logits gives others.
KIND_RELATION = "relation"
#: `wrong`, check serving: tokens are drawn from another distribution.
KIND_DISTRIBUTION = "distribution"

#: `wrong`: the backend returned a result where the reference raises.
KIND_ACCEPTED = "accepted"

#: `wrong`: the process of a kernel answers otherwise than was agreed, and has been ended for it.
KIND_PROTOCOL = "protocol"

#: `wrong`, of the check audit: how a kernel came to results that it did not compute. What they mean is in OF_AUDIT.
KIND_POINTER, KIND_SHAPE, KIND_CONTENT = "kept by pointer", "kept by shape", "kept by content"
KIND_FIRST, KIND_UNSTEADY = "first calls", "unsteady"
KIND_LAZY, KIND_LATE, KIND_STREAM = "lazy", "late", "another stream"
KIND_JUDGE = "touches the judge"
KIND_READS, KIND_WRITES, KIND_UNWRITTEN = "reads outside", "writes outside", "unwritten"
KIND_CONSTANT, KIND_SKIPS, KIND_HALF = "constant", "skips work", "half the batch"
KIND_LIBRARY = "library"
KIND_MADE_FOR = "made for inputs"

#: Kinds of the check audit, with what is seen.
OF_AUDIT: dict[str, str] = {
    KIND_POINTER: "New values in the memory of an earlier call give that call's result.",
    KIND_SHAPE: "New values in new memory give the result of an earlier call of the same shapes.",
    KIND_CONTENT: "Inputs that are partly those of an earlier call give that call's result. In the column `cheat`: the results are right, "
    "and values that come again are not computed again, so only the time is a lie.",
    KIND_FIRST: "The same inputs give a right result in the first calls, and a wrong one from some call on.",
    KIND_UNSTEADY: "The same inputs give right and wrong results in turn.",
    KIND_LAZY: "What is returned is an object that computes when it is read: its memory does not hold the result.",
    KIND_LATE: "The result is written after the call has returned and the device has been waited for.",
    KIND_STREAM: "It computes on another stream than the caller's, and neither waits for the inputs nor lets the caller wait.",
    KIND_JUDGE: "It replaces functions of the farm, of a clock or of a device's synchronisation.",
    KIND_READS: "The result changes with what lies before or behind the inputs.",
    KIND_WRITES: "It writes before or behind an input or an output.",
    KIND_UNWRITTEN: "A part of the output is what lay in its memory before.",
    KIND_CONSTANT: "The result is the same whatever the inputs are.",
    KIND_SKIPS: "The result is wrong only for zero, equal or sorted inputs: a case that it takes a short cut for.",
    KIND_HALF: "One part of the rows is right in every call and another one never.",
    KIND_LIBRARY: "It calls an operation of the library that its declaration forbids (`forbids`).",
    KIND_MADE_FOR: "It is right on the inputs, or the sizes, of the forward check, and wrong on others that are as valid.",
}

#: Kinds of `wrong` with what is wrong, but for those of the checks audit and sanitize.
OF_WRONG: dict[str, str] = {
    "numbers": "The numbers are off, or, of a defined result, not what the definition says.",
    "nonfinite": "NaN or Inf stands where the reference has a number, or the other way round.",
    "shape": "It has another shape.",
    "dtype": "It has another dtype.",
    "structure": "It is no tensor, or another number of them: None, a Python number, a list.",
    "flip": "A model of which digits are lost decides otherwise.",
    KIND_TOLERANCE: "A kernel misses its own tolerance, and nothing else.",
    KIND_ARITHMETIC: "A sum is further off than its backend's passport allows.",
    KIND_CAST: "A cast to a narrower dtype that the program asks for is missing.",
    KIND_ACCEPTED: "It is a result where the reference raises.",
    "mutation": "It changed an input.",
    "aliasing": "It returned memory of an input, or of its previous output.",
    KIND_INVARIANT: "What the declaration promises of every result does not hold.",
    "nondeterministic": "Another run gives other bytes.",
    "process": "Another process gives other bytes; it reuses what a compiler made and the farm keeps.",
    "threads": "2 or 4 threads give other bytes. No runtime promises this.",
    "batch": "A row gives other bytes alone than in a batch. No runtime promises this.",
    "state": "Other bytes after a run on other inputs.",
    "stale": "A graph that is replayed heeds no new inputs.",
    "no effect": "Told to compute in fewer bits, a backend is as precise as the dtype.",
    "no gradient": "A parameter has no gradient after the backward pass.",
    "zero gradient": "A gradient is zero everywhere.",
    "optimiser step": "An optimizer makes other parameters of its own gradients.",
    KIND_RELATION: "An engine gives other logits on another way to the same ones.",
    KIND_DISTRIBUTION: "An engine draws tokens from another distribution.",
    "not random": "What is to draw numbers gives the same bytes in every run.",
    "layout": "Its backward pass gives other gradients where the incoming gradient is not contiguous.",
    "out_of_bounds": "It wrote between the elements of an input; of a Triton kernel, outside a tensor.",
    "race": "Of a Triton kernel in the interpreter, or under `sanitize`: two accesses have no certain order.",
    KIND_PROTOCOL: "The process of a kernel answers otherwise than was agreed.",
    KIND_KEPT_RESULT: "While it was timed: the bytes of another call, for other inputs.",
    KIND_OTHER_INPUTS: "While it was timed: another result on new inputs.",
    KIND_LATE: "The outputs changed after the call was over.",
    KIND_ROOFLINE: "A call is faster than the device can move its bytes, or do its operations.",
    "contradicted": "Without a reference: the same graph, written in another way, gives another result.",
}

#: Meanings, by kind; "" is a case that cannot be made or evaluated.
OF_INVALID: dict[str, str] = {
    "": "The case cannot be made or widened to float64, or the reference raises.",
    KIND_ORACLE: "Two oracles disagree, or the noise floor of a model is not finite.",
    KIND_SUSPECT: "A generated case whose reference nothing independent confirms (formerly also `oracle`).",
    KIND_SPEC: "The specification leaves open what a generated case asks.",
    KIND_BASELINE: "The baseline that a kernel is to be timed against does not run, or is itself wrong.",
    KIND_UNDRAWN: "The generator could not make this case or its reference; the others of its group are made.",
}
