#!/usr/bin/env python3
"""Measures llama.cpp on the CPU through llama-cpp-python's low-level API.

Prints one JSON object per test, like `metallic bench --json`: prefill of N tokens (`ppN`) and
decoding of N tokens from an empty context (`tgN`), in tokens per second.
"""
import argparse
import ctypes
import json
import statistics
import sys
import time

import llama_cpp as ll

UBATCH = 512


@ll.llama_log_callback
def silent(level, text, user_data):
    pass


class Peer:
    def __init__(self, path, threads, context):
        ll.llama_log_set(silent, ctypes.c_void_p(0))
        ll.llama_backend_init()
        params = ll.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = ll.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        params = ll.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = max(context, UBATCH)
        params.n_ubatch = UBATCH
        params.n_threads = threads
        params.n_threads_batch = threads
        params.no_perf = True
        self.context = ll.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit(f"llama.cpp cannot make a context of {context} tokens for {path}")
        self.vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(self.model))

    def clear(self):
        ll.llama_memory_clear(ll.llama_get_memory(self.context), True)

    def decode(self, tokens):
        array = (ll.llama_token * len(tokens))(*tokens)
        batch = ll.llama_batch_get_one(array, len(tokens))
        status = ll.llama_decode(self.context, batch)
        if status != 0:
            sys.exit(f"llama_decode returned {status}")

    def tokens(self, count):
        # Any fixed spread over the vocabulary: the values do not change the work.
        return [(i * 7919 + 13) % self.vocab for i in range(count)]

    def prefill(self, count):
        self.clear()
        tokens = self.tokens(count)
        start = time.perf_counter()
        self.decode(tokens)
        ll.llama_synchronize(self.context)
        return count / (time.perf_counter() - start)

    def generate(self, count):
        self.clear()
        tokens = self.tokens(count)
        start = time.perf_counter()
        for token in tokens:
            self.decode([token])
            ll.llama_synchronize(self.context)
        return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("-p", "--prompt", default="128,512", help="lengths of prefill, separated by commas")
    parser.add_argument("-n", "--generate", default="64", help="lengths of decoding, separated by commas")
    parser.add_argument("-r", "--reps", type=int, default=3)
    args = parser.parse_args()

    lengths = lambda text: [int(word) for word in text.split(",") if word]
    prompts, generations = lengths(args.prompt), lengths(args.generate)
    peer = Peer(args.model, args.threads, max(prompts + generations + [UBATCH]))
    peer.prefill(64)
    peer.generate(4)
    tests = [("pp", n, peer.prefill) for n in prompts] + [("tg", n, peer.generate) for n in generations]
    for kind, count, measure in tests:
        samples = [measure(count) for _ in range(args.reps)]
        print(json.dumps({
            "test": f"{kind}{count}",
            "tokens": count,
            "threads": args.threads,
            "mean": statistics.fmean(samples),
            "median": statistics.median(samples),
            "sd": statistics.stdev(samples) if len(samples) > 1 else 0.0,
        }), flush=True)


if __name__ == "__main__":
    main()
