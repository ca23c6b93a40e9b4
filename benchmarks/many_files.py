"""Plan over up to a million files with cached footers: on a local disk, and as a listing of an object store.

The files are hard links, and the footers and the listing are synthetic: only planning is measured, each time in a new
process. `python -m benchmarks.many_files [FILES...]` updates `many_files.json` and the report of cost against size.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from benchmarks import report_scaling

OUT = Path(__file__).resolve().parent.parent / "docs" / "benchmarks"
SIZES = (1_000, 10_000, 100_000, 1_000_000)
PARTITIONS = 100
PAGE = 1_000
RESPONSE_SECONDS = 0.02


class Listing(BaseHTTPRequestHandler):
    """An object store with the objects `d/part=<n>/<n>.parquet`, which can only be listed."""

    protocol_version = "HTTP/1.1"
    files = 0

    def do_HEAD(self) -> None:
        self._respond(404, "")

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        time.sleep(RESPONSE_SECONDS)
        if query.get("prefix", "").startswith("d/"):
            self._respond(200, self._page(query))
        else:
            self._respond(200, "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    def _page(self, query: dict[str, str]) -> str:
        per = self.files // PARTITIONS
        if "delimiter" in query:
            found = "".join(
                f"<CommonPrefixes><Prefix>d/part%3D{n:03}/</Prefix></CommonPrefixes>" for n in range(PARTITIONS)
            )
            return self._document(f"<IsTruncated>false</IsTruncated>{found}")
        first = int(query.get("continuation-token", 0))
        if after := re.search(r"part=(\d+)", query.get("start-after", "") if not first else ""):
            first = int(after[1]) * per
        last = min(first + PAGE, self.files)
        found = "".join(
            f"<Contents><Key>d/part%3D{n // per:03}/{n % per:06}.parquet</Key><LastModified>2026-01-01T00:00:00.000Z"
            f"</LastModified><ETag>&quot;{n:032x}&quot;</ETag><Size>1000</Size></Contents>"
            for n in range(first, last)
        )
        more = f"<NextContinuationToken>{last}</NextContinuationToken>" if last < self.files else ""
        truncated = "true" if more else "false"
        return self._document(f"<IsTruncated>{truncated}</IsTruncated>{more}{found}")

    def _document(self, text: str) -> str:
        return f"<ListBucketResult><EncodingType>url</EncodingType>{text}</ListBucketResult>"

    def _respond(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


def serve(files: int) -> None:
    Listing.files = files
    with ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


def make_files(root: Path, files: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    per = files // PARTITIONS
    for partition in range(PARTITIONS):
        directory = root / f"part={partition:03}"
        directory.mkdir(parents=True)
        first = str(directory / f"{0:06}.parquet")
        pq.write_table(pa.table({"id": [partition]}), first)
        for number in range(1, per):
            os.link(first, directory / f"{number:06}.parquet")


def fill_cache(location: Any) -> None:
    """Store a synthetic footer for each listed file."""
    import numpy as np
    import pyarrow as pa

    from inlay.commit.transaction import footer_cache
    from inlay.parquet.footer_cache import Footers, _Ranges
    from inlay.parquet.layout import data_files

    files = data_files(location)
    count, numbers = len(files), np.arange(len(files), dtype=np.int64)
    ranges = _Ranges(*(pa.array(v) for v in (np.full(count, 2, np.int8), numbers, numbers, 0 * numbers)))
    schema = pa.schema([("id", pa.int64())])
    ones = np.ones(count, np.int64)
    footer_cache(location).save(Footers(files, ones, ones, [schema], 0 * numbers, {"id": ranges}, {}))


def measure(url: str, options: dict[str, Any], step: str) -> None:
    """Fill the cache, or print the cost of one plan, whose key no file contains."""
    import inlay
    from inlay.storage import locate

    if step == "fill":
        fill_cache(locate(url, storage_options=options))
        return
    source = {"id": [-1], "part": ["000"]}
    cpu, wall = time.process_time(), time.perf_counter()
    plan = inlay.plan_merge(source, url, "upsert", ["id"], storage_options=options or None)
    cost = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(cost | {"peak_mb": peak, "files": len(plan.unaffected_files)}))


def _run(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "benchmarks.many_files", *arguments]
    return subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def _costs(files: int, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    root = folder / "d"
    make_files(root, files)
    (folder / ".d.txn").mkdir()
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.many_files", "serve", str(files)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{int(server.stdout.readline())}"}
        for name, url, given in (("local", str(root), {}), ("s3", f"s3://bucket/{quote(root.name)}", options)):
            arguments = (url, json.dumps(given))
            _run("measure", *arguments, "fill", XDG_CACHE_HOME=str(folder / "cache"))
            runs = [
                json.loads(_run("measure", *arguments, "plan", XDG_CACHE_HOME=str(folder / "cache"))) for _ in range(2)
            ]
            yield name, min(runs, key=lambda run: run["cpu"])
    finally:
        server.terminate()
        server.wait()


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["serve"]:
        serve(int(arguments[1]))
        return
    if arguments[:1] == ["measure"]:
        measure(arguments[1], json.loads(arguments[2]), arguments[3])
        return
    report = OUT / "many_files.json"
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    for files in map(int, arguments or SIZES):
        with tempfile.TemporaryDirectory(prefix="inlay-many-files-") as folder:
            found[str(files)] = dict(_costs(files, Path(folder)))
        print(files, found[str(files)], file=sys.stderr, flush=True)
        report.write_text(json.dumps(found, indent=1) + "\n")
    report_scaling.write_document(json.loads((OUT / "merge.json").read_text()), OUT)


if __name__ == "__main__":
    main(sys.argv[1:])
