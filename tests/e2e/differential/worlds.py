"""What servers are started with: models, and flags of both or of one."""

import collections

import test_ensembles
import test_errors
import test_stream
from repository import identity, tensors

from .sequences import CONTROLS, WORDS

# `is_restricted`: even readiness is asked for with the header `key: value`.
World = collections.namedtuple("World", "models flags conch triton is_restricted", defaults=(False,))
PLAIN_RESPONSES = 'parameters { key: "example_response_parameters" value { string_value: "false" } }\n'
LABELLED = ('backend: "identity"\nmax_batch_size: 8\n' + tensors("input", [("INPUT0", "FP32", (-1,))])
            + 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] label_filename: "labels.txt" }\n'
            + "instance_group [ { count: 1 kind: KIND_CPU } ]\n" + PLAIN_RESPONSES)
OPTIONAL = ('backend: "identity"\nmax_batch_size: 0\n'
            + 'input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }\n'
            + 'input { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] optional: true }\n'
            + 'input { name: "INPUT2" data_type: TYPE_FP32 dims: [ -1 ] optional: true }\n'
            + tensors("output", [("OUTPUT0", "FP32", (-1,))]) + "instance_group [ { count: 1 kind: KIND_CPU } ]\n" + PLAIN_RESPONSES)
TYPES = ("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING", "BF16")


def plain(repository):
    test_errors.models(repository)
    repository.model("labelled", LABELLED, files={"labels.txt": b"zero\none\ntwo\nthree\n"})
    repository.model("choosy", OPTIONAL)
    repository.model("square", test_stream.square())
    repository.model("repeat", test_stream.REPEAT)
    repository.model("parameters", identity([("parameters", "FP32", (-1,))], outputs=[("OUTPUT0", "FP32", (-1,))]))
    for kind in TYPES:
        repository.model(f"type_{kind.lower()}", identity([("INPUT0", kind, (-1,))]))
    for name in ("counted", "counted_too"):  # each is asked by one entry only
        repository.model(name, identity(batch=8))
    repository.model("grid", identity([("INPUT0", "FP32", (-1, 2))], batch=4))
    repository.model("two", identity([("INPUT0", "INT32", (2,))]), versions=("1", "3"))


def few(repository):
    repository.model("identity", identity(batch=8))


def ensembles(repository):
    chain, ensemble, step = test_ensembles.chain, test_ensembles.ensemble, test_ensembles.step
    pair = [("INPUT0", "FP32", (2,))], [("OUTPUT0", "FP32", (2,))]
    repository.model("a", identity()).model("batched", identity(batch=8)).model("row", identity([("INPUT0", "FP32", (2,))]))
    repository.model("inner", ensemble(chain("a", "a"))).model("nested", ensemble(chain("inner", "a")))
    repository.model("into_row", ensemble(chain("batched", "row"), *pair, batch=8)).model("from_row", ensemble(chain("row", "batched"), *pair))
    repository.model("branches", ensemble([step("a", {"INPUT0": "INPUT0"}, {"OUTPUT0": name}) for name in ("left", "right")],
                                          outputs=[(name, "FP32", (-1,)) for name in ("left", "right")]))
    one = [("INPUT0", "INT32", (1,))]
    repository.model("square", test_stream.square()).model("one", identity(one))
    repository.model("counting", ensemble([step("square", {"IN": "INPUT0"}, {"OUT": "made"}), step("one", {"INPUT0": "made"}, {"OUTPUT0": "OUTPUT0"})],
                                          one, [("OUTPUT0", "INT32", (1,))]))


def namespaces(repository):
    repository.model("identity", identity(batch=8))
    repository.model("own", identity(batch=8))


def sequences(repository):
    repository.model("sequence", identity([("INPUT0", "FP32", (2,))], batch=4, extra=CONTROLS))
    repository.model("words", identity([("INPUT0", "FP32", (2,))], batch=4, extra=WORDS))


QUIET = ("--exit-on-error=false", "--strict-readiness=false")
WORLDS = {
    "plain": World(plain, QUIET, (), ()),
    "control": World(plain, (*QUIET, "--model-control-mode=explicit", "--load-model=identity", "--load-model=fixed"), (), ()),
    "small": World(few, (), ("--http-max-input-size=4096",), ()),
    "restricted": World(few, ("--http-restricted-api=health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging:key=value",
                              "--grpc-restricted-protocol=health,metadata,inference,shared-memory,model-config,model-repository,statistics,trace,logging:key=value"), (), (), True),
    "forwarding": World(few, ("--http-header-forward-pattern=(?i)(x-.*|sequence_.*|priority|timeout|headers|binary_data_output|triton_.*)",
                              "--grpc-header-forward-pattern=(x-.*|sequence_.*|priority|timeout|headers|binary_data_output|triton_.*)"), (), ()),
    "traced": World(few, ("--trace-config=triton,file=/dev/null", "--trace-config=rate=1000", "--trace-config=level=TIMESTAMPS"), (), ()),
    "sharing": World(few, (), ("--allow-client-shm=true",), ()),
    "sequences": World(sequences, (), (), ()),
    "idle": World(few, (), (), ()),
    "packed_low": World(few, ("--grpc-infer-response-compression-level=low",), (), ()),
    "packed_high": World(few, ("--grpc-infer-response-compression-level=high",), (), ()),
    "ensembles": World(ensembles, (), (), ()),
    "spaces": World(namespaces, ("--model-namespacing=true", "--model-control-mode=explicit", "--load-model=*"), (), ()),
}
