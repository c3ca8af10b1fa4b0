"""Runs `load` of bench/ in a closed loop against a server."""

import json
import pathlib
import subprocess
import tempfile

import machine
import server as servers


class Load:
    """One request, repeated: its file lies in a directory that goes away with it."""

    def __init__(self, address, protocol, body, model="identity", connections=8):
        self.directory = tempfile.TemporaryDirectory(prefix="conch-load-")
        file = pathlib.Path(self.directory.name) / "body"
        content, json_bytes = body
        file.write_bytes(content)
        self.command = [str(servers.built("load")), f"--protocol={protocol}", f"--address={address}", f"--body={file}",
                        f"--connections={connections}", "--rate=0", "--warm-up-seconds=0"]
        if protocol == "http":
            self.command += [f"--path=/v2/models/{model}/infer", f"--json-bytes={json_bytes or 0}"]

    def run(self, seconds, client_cpus):
        """One client on each of the CPUs at once; what all of them together did."""
        processes = [subprocess.Popen([*machine.bound_to([cpu]), *self.command, f"--seconds={seconds}"],
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for cpu in client_cpus]
        reports = []
        for process in processes:
            output, errors = process.communicate(timeout=seconds + 60)
            try:
                reports.append(json.loads(output))
            except json.JSONDecodeError:
                raise RuntimeError(f"load ended with code {process.returncode}: {errors[-1000:] or output[-1000:]}") from None
        return {"requests": sum(report["count"] for report in reports),
                "requests_per_second": sum(report["answered_per_second"] for report in reports),
                "failed": sum(report["failed"] + report["lost_connections"] for report in reports),
                "reasons": sorted({reason for report in reports for reason in report["reasons"]})[:5],
                "p50_us": max(report["p50_us"] for report in reports), "p99_us": max(report["p99_us"] for report in reports)}

    def close(self):
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
