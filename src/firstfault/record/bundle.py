"""File names of an incident bundle: what was asked of a server, and where its answers lie, for writer and reader alike.

incident_bundle_20261130_214500/
    metadata.json                        when, of which server, how each probe went
    SUMMARY.txt                          one line a file
    health.txt                           or health.txt.error.json
    health_generate.txt                  or health_generate.txt.error.json
    metrics.txt                          Prometheus text
    model_info.json server_info.json     {"ok": true, "status": 200, "path": …, "json": {…}}
    loads_all.json                       or {"ok": false, "status": -1, "path": …, "error": "TimeoutError: timed out"}
    loads_core_queues_disagg.json
    hicache_storage_backend.json
    samples/0002/                        the same again, later: metrics.txt, loads_all.json
    local/                               processes.json, gpu.json, stacks-4242.txt, log-1.txt, progress.json

The names, and what the files of one sample hold, are those of SGLang's own ``incident_artifact_tool.py``, so that a
bundle of either is read by both.
"""

from __future__ import annotations

from dataclasses import dataclass

METADATA = "metadata.json"
SUMMARY = "SUMMARY.txt"
SAMPLES = "samples"
LOCAL = "local"
ERROR_SUFFIX = ".error.json"
BUNDLE_VERSION = 1

HEALTH = "health.txt"
HEALTH_GENERATE = "health_generate.txt"
READY = "ready.txt"
PING = "ping.txt"
METRICS = "metrics.txt"
MODEL_INFO = "model_info.json"
SERVER_INFO = "server_info.json"
LOADS_ALL = "loads_all.json"
LOADS_QUEUES = "loads_core_queues_disagg.json"
HICACHE = "hicache_storage_backend.json"
GET_LOAD = "get_load.json"
VERSION = "version.json"
MODELS = "v1_models.json"
LOAD = "load.json"

PROCESSES = "processes.json"
GPU = "gpu.json"
PROGRESS = "progress.json"
STACKS = "stacks-{pid}.txt"
LOG = "log-{index}.txt"


@dataclass(frozen=True)
class Probe:
    """One thing to ask of a server.

    Attributes:
        file: of the bundle.
        paths: tried in this order until one is there; names differ between versions of the engines.
        kind: how the body is read and what is taken out of it.
        generates: whether an engine answers it by generating a token: SGLang's ``/health`` does, too.
        repeated: whether each sample has it.
        optional: whether a server that has none is none the worse for it, and no file tells of it.
    """

    file: str
    paths: tuple[str, ...]
    kind: str = "json"
    generates: bool = False
    repeated: bool = False
    optional: bool = False


PROBES = (
    Probe(HEALTH, ("/health",), "text", generates=True),
    Probe(HEALTH_GENERATE, ("/health_generate",), "text", generates=True),
    Probe(METRICS, ("/metrics",), "metrics", repeated=True),
    Probe(MODEL_INFO, ("/model_info", "/get_model_info")),
    Probe(SERVER_INFO, ("/server_info", "/get_server_info")),
    Probe(LOADS_ALL, ("/v1/loads?include=all", "/v1/loads"), repeated=True),
    Probe(LOADS_QUEUES, ("/v1/loads?include=core,queues,disagg,spec",)),
    Probe(HICACHE, ("/hicache/storage-backend",)),
    Probe(GET_LOAD, ("/get_load",), optional=True),
    Probe(READY, ("/ready",), "text", optional=True),
    Probe(PING, ("/ping",), "text", optional=True),
    Probe(VERSION, ("/version",), optional=True),
    Probe(MODELS, ("/v1/models",), optional=True),
    Probe(LOAD, ("/load",), repeated=True, optional=True),
)
"""SGLang's and vLLM's together: which engine it is shows from what answers."""
