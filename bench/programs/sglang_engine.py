"""SGLang's engine generates greedily: ``sglang_engine.py MODEL REQUESTS TOKENS [cpu|cuda] [graphs] [once]``.

Prints tokens/s, the better of two, and a digest of the tokens; with ``once`` of the first try, which is the only one.
"""

import hashlib
import sys
import time


def main() -> None:
    import sglang

    model, requests, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    device, graphs = (sys.argv[4:5] or ["cuda"])[0], "graphs" in sys.argv[5:]
    options = {
        "attention_backend": "triton" if device == "cuda" else "torch_native", "sampling_backend": "pytorch",
        "grammar_backend": "none", "disable_cuda_graph": not graphs, "log_level": "error",
    }  # fmt: skip
    if device == "cuda":
        options |= {"disable_piecewise_cuda_graph": True, "mem_fraction_static": 0.2}
        options |= {"cuda_graph_max_bs": 8} if graphs else {}
    else:
        options |= {"device": "cpu", "mem_fraction_static": 0.1, "max_total_tokens": 4096, "dtype": "bfloat16"}
    engine = sglang.Engine(model_path=model, **options)
    prompts = ["hello world " * 8] * requests
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    once = "once" in sys.argv[5:]
    if not once:
        engine.generate(prompts, sampling | {"max_new_tokens": 4})
    best, texts = float("inf"), []
    for _ in range(1 if once else 2):
        began = time.perf_counter()
        texts = [answer["text"] for answer in engine.generate(prompts, sampling)]
        best = min(best, time.perf_counter() - began)
    print(f"RATE {requests * tokens / best:.1f}", flush=True)
    print("RESULT", hashlib.sha256("".join(texts).encode()).hexdigest(), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
