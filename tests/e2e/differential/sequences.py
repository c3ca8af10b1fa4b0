"""Sequences: who is refused, and who is served."""

from .entry import entry
from .sound import infer, request, tensor

CONTROLS = ('sequence_batching { direct { } max_sequence_idle_microseconds: 2000000 '
            'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } }\n')
WORDS = CONTROLS.replace("control_input {", 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } control_input {', 1)
ENTRIES = []


def add(name, rows, *steps):
    ENTRIES.append(entry("sequences", name, rows, *steps))


def asked(rows=1, model="sequence", **parameters):
    return infer(request(tensor([1, 2] * rows, [rows, 2]), id="q", parameters=parameters), model=model)


add("sequence", "scheduling/sequence-without-start", asked(sequence_id=1, sequence_start=True), asked(sequence_id=1),
    asked(sequence_id=1, sequence_end=True), asked(sequence_id=1), asked(sequence_id="one", sequence_start=True, sequence_end=True),
    asked(sequence_id="two"))
add("sequence_without_id", "scheduling/sequence-without-id", asked(), asked(sequence_start=True), asked(sequence_id=0, sequence_start=True),
    asked(sequence_id="", sequence_start=True))
add("sequence_batch", "scheduling/sequence-batch", asked(2, sequence_id=5, sequence_start=True), asked(2))
add("sequence_id_type", "validation/correlation-id-type", asked(model="words", sequence_id="w", sequence_start=True, sequence_end=True),
    asked(model="words", sequence_id=5, sequence_start=True, sequence_end=True))
