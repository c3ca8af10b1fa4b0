"""Runs `load` of bench/ against a server, in a closed loop or at a rate, and wrk."""

import json
import os
import pathlib
import subprocess
import tempfile

import machine
import server as servers


class Load:
    """One request, repeated: its file lies in a directory that goes away with it."""

    def __init__(self, address, protocol, body, model="identity", connections=8, rate=0, arrivals="even", warm_up_s=0):
        self.directory = tempfile.TemporaryDirectory(prefix="conch-load-")
        file = pathlib.Path(self.directory.name) / "body"
        content, json_bytes = body
        file.write_bytes(content)
        self.command = [str(servers.built("load")), f"--protocol={protocol}", f"--address={address}", f"--body={file}",
                        f"--connections={connections}", f"--warm-up-seconds={warm_up_s}", f"--rate={rate}"]
        if rate and arrivals != "even":
            self.command.append(f"--arrivals={arrivals}")
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


def wrk(url, body, connections, seconds, cpu, headers=()):
    """Runs wrk once, in a closed loop on one CPU: requests, seconds, failed, p50_us, p99_us. A header is "Name: value"."""
    with tempfile.NamedTemporaryFile(prefix="conch-wrk-") as file:
        file.write(body)
        file.flush()
        output = subprocess.run(
            [*machine.bound_to([cpu]), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s",
             "-s", str(pathlib.Path(__file__).with_name("wrk.lua")), url],
            capture_output=True, text=True, env={**os.environ, "BODY": file.name, "HEADERS": "\n".join(headers)}, check=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    return json.loads(line[len("RESULT "):])
