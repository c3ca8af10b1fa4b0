"""Lays the test programs out as upstream's image of them does: runs the copies that its Dockerfile.QA names, as far as their sources
are here.

    lay_out_programs.py SERVER WORKSPACE     WORKSPACE has `qa`, `docs`, `src`, `deploy`, `bin` and `tritonbuild`, as in that image
"""

import pathlib
import re
import shlex
import subprocess
import sys

server, workspace = map(pathlib.Path, sys.argv[1:])
text = (server / "Dockerfile.QA").read_text().replace("\\\n", " ")
commands = [part.strip() for line in re.findall(r"^RUN (.*)$", text, re.M) for part in line.split("&&")]
done = failed = 0
for command in commands:
    words = shlex.split(command, comments=True)
    # What is installed into the image itself is not ours to run.
    if not words or words[0] not in ("mkdir", "cp") or not any(word.startswith("qa/") for word in words):
        continue
    if re.search(r"(^|\s)/(?!workspace/)", command):
        continue
    outcome = subprocess.run(["sh", "-c", command.replace("/workspace/", "")], cwd=workspace, capture_output=True, text=True)
    done += 1
    if outcome.returncode:
        failed += 1
        print(outcome.stderr.strip().splitlines()[-1])
print(f"{done} copies and folders, of which {failed} have no source here")
