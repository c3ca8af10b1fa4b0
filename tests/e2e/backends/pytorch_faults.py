"""Files that the pytorch backend cannot serve: cut off, changed, or holding something else."""

import io
import json
import zipfile

import broken_files
import pytorch_engine as engine
from broken_files import NOISE


def rewritten(archive, change=None, drop=(), add=None, method=zipfile.ZIP_STORED):
    """The archive with entries changed by `change(name, content)`, dropped by the ends of their names, or added."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(made, "w", method) as target:
        for entry in source.namelist():
            if not any(entry.endswith(end) for end in drop):
                content = source.read(entry)
                target.writestr(entry, change(entry, content) if change else content)
        for name, content in (add or {}).items():
            target.writestr(name, content)
    return made.getvalue()


def replaced(archive, end, content):
    """The archive with another content of the entries whose names end so; `content` may be a function of the old."""
    def change(name, old):
        if not name.endswith(end):
            return old
        return content(old) if callable(content) else content
    return rewritten(archive, change)


def patched(content, at, value):
    return content[:at] + value + content[at + len(value):]


def damaged(archive, suffix):
    """What can happen to any archive, and to the entry in it whose name ends so."""
    archive = rewritten(archive)
    end = archive.rindex(b"PK\x05\x06")
    directory = int.from_bytes(archive[end + 16:end + 20], "little")
    entry = archive.rindex(b"PK\x01\x02", 0, archive.rindex(suffix.encode()))
    return {
        **broken_files.OTHERS,
        **broken_files.cut(archive, start=100),
        "without_a_directory": archive[:directory],
        "directory_elsewhere": patched(archive, end + 16, b"\xf0\xff\xff\x7f"),
        "directory_too_long": patched(archive, end + 12, b"\xf0\xff\xff\x7f"),
        "name_too_long": patched(archive, entry + 28, b"\xff\xff"),
        "entry_elsewhere": patched(archive, entry + 42, b"\xf0\xff\xff\x7f"),
        "entry_too_large": patched(archive, entry + 20, b"\xf0\xff\xff\x7f\xf0\xff\xff\x7f"),
        "no_entries": b"PK\x05\x06" + bytes(18),
    }


def script_files():
    """By name: the bytes of a `model.pt`."""
    archive = engine.file_of("weighted").read_bytes()
    return {
        **damaged(archive, "/data.pkl"),
        "without_data": rewritten(archive, drop=["/data.pkl"]),
        "without_code": rewritten(archive, drop=[".py", ".debug_pkl"]),
        "without_constants": rewritten(archive, drop=["/constants.pkl"]),
        "without_weights": rewritten(archive, drop=["/data/0"]),
        "data_cut": replaced(archive, "/data.pkl", lambda old: old[:len(old) // 2]),
        "data_of_noise": replaced(archive, "/data.pkl", NOISE[:512]),
        "data_empty": replaced(archive, "/data.pkl", b""),
        "data_of_another_class": replaced(archive, "/data.pkl", lambda old: old.replace(b"Weighted", b"Waighted")),
        "data_that_calls": replaced(archive, "/data.pkl", b"\x80\x02cos\nsystem\n(X\x05\x00\x00\x00falsetR."),
        "data_that_takes_from_nothing": replaced(archive, "/data.pkl", b"\x80\x02tRtR."),
        "data_of_unknown_memory": replaced(archive, "/data.pkl", b"\x80\x02h\xfe."),
        "shape_beyond_the_weights": replaced(archive, "/data.pkl", lambda old: old.replace(b"K\x02K\x04", b"K\xffK\xff")),
        "code_that_is_none": replaced(archive, ".py", b"def forward(self:\n  return ((("),
        "code_of_noise": replaced(archive, ".py", NOISE[:512]),
        "code_without_forward": replaced(archive, ".py", lambda old: old.replace(b"def forward", b"def backward")),
        "code_with_an_unknown_operator": replaced(archive, ".py", lambda old: old.replace(b"torch.linear", b"torch.lunear")),
        "code_in_brackets": replaced(archive, ".py", lambda old: old.replace(b"return ", b"return " + b"(" * 100_000)),
        "code_of_minus_signs": replaced(archive, ".py", lambda old: old.replace(b"return ", b"return " + b"-" * 100_000)),
        "code_of_blocks": replaced(archive, ".py", lambda old: old.replace(b"    return ", b"".join(
            b"  " * (depth + 2) + b"if True:\n" for depth in range(3000)) + b"  " * 3002 + b"return ")),
        "data_in_lists": replaced(archive, "/data.pkl", b"\x80\x02" + b"]" * 1_000_000 + b"a" * 999_999 + b"."),
        "data_in_tuples": replaced(archive, "/data.pkl", b"\x80\x02)" + b"\x85" * 1_000_000 + b"."),
        "data_that_grows_unseen": replaced(archive, "/data.pkl", b"\x80\x02]q\x00]q\x01h\x00h\x01a."),
        "version_of_the_future": replaced(archive, "/version", b"9999\n"),
        "version_that_is_none": replaced(archive, "/version", b"three\n"),
        "weights_alone": engine.file_of("weights_alone").read_bytes(),
        "compiled": engine.file_of("addsub_compiled").read_bytes(),
    }


def compiled_files():
    """By name: the bytes of a `model.pt2`."""
    archive = engine.file_of("addsub_compiled").read_bytes()
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        library = next(name for name in content.namelist() if name.endswith(".so"))
        facts = next(name for name in content.namelist() if name.endswith("metadata.json"))
        code = content.read(library)
        described = json.loads(content.read(facts))
    other = library.replace("/model/", "/other/")

    def described_as(**more):
        return replaced(archive, "metadata.json", json.dumps({**described, **more}).encode())

    return {
        **damaged(archive, ".so"),
        "without_a_library": rewritten(archive, drop=[".so"]),
        "with_two_libraries": rewritten(archive, add={library.replace(".wrapper", ".second"): code}),
        "of_two_other_models": rewritten(archive, drop=[library], add={other: code, other.replace("/other/", "/third/"): code}),
        "library_empty": replaced(archive, ".so", b""),
        "library_of_noise": replaced(archive, ".so", NOISE),
        "library_cut": replaced(archive, ".so", code[:20_000]),
        "library_cut_in_its_head": replaced(archive, ".so", code[:70]),
        "library_of_another_machine": replaced(archive, ".so", patched(code, 18, b"\xf3\x00")),
        "library_of_32_bits": replaced(archive, ".so", patched(code, 4, b"\x01")),
        "library_without_functions": replaced(archive, ".so", code.replace(b"AOTInductorModelContainer", b"AOTInductorModalContainer")),
        "metadata_cut": replaced(archive, "metadata.json", b'{"AOTI'),
        "for_a_gpu": described_as(AOTI_DEVICE_KEY="cuda"),
        "for_another_machine": described_as(AOTI_MACHINE="riscv64"),
        "exported_alone": engine.file_of("exported").read_bytes(),
        "script": engine.file_of("weighted").read_bytes(),
    }
