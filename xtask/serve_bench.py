"""Many streams at once on a server: tokens per second, how evenly they are shared, and how long newcomers and running answers wait.

`cargo xtask serve-bench` runs it. Nothing but Python's own library is needed, and `xllamacpp` (llama.cpp's server) for a comparison.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time

PEER = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = sys.argv[1], ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx = int(sys.argv[4]), int(sys.argv[5])
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
server = xllamacpp.Server(params)
print("ready", flush=True)
while True:
    time.sleep(3600)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server in a process of its own."""

    def __init__(self, name, command, port, model):
        self.name, self.port, self.model = name, port, model
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def ready(self):
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"{self.name} ended before it was ready ({self.process.returncode})")
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if b" 200 " in await reader.readline():
                    return self
            except OSError:
                pass
            await asyncio.sleep(0.1)
        sys.exit(f"{self.name} was not ready after a minute")


class Stream(asyncio.Protocol):
    """Keeps what comes and when. It is read afterwards: who asks has the same cores as who answers."""

    def __init__(self, request):
        self.request, self.pieces = request, []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.begun = time.monotonic()
        transport.write(self.request)

    def data_received(self, data):
        self.pieces.append((time.monotonic(), data))

    def connection_lost(self, error):
        self.ended.set_result(time.monotonic())

    def lines(self):
        """Each line, and when its end came."""
        rest = b""
        for at, data in self.pieces:
            *lines, rest = (rest + data).split(b"\n")
            yield from ((at, line) for line in lines)


class Streamed:
    """When each token of an answer came, after the request was sent, in seconds; and how many of its prompt had to be computed."""

    def __init__(self, server, stream):
        self.times, self.computed, status = [], 0, None
        for at, line in stream.lines():
            status = status or line
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                sys.exit(f"{server.name}: {chunk['error']}")
            # A token whose text is not certain yet may come without any.
            choice = chunk["choices"][0] if chunk["choices"] else {}
            if choice and not choice.get("finish_reason") and choice["delta"].get("content"):
                self.times.append(at - stream.begun)
            if usage := chunk.get("usage"):
                cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                self.computed = usage["prompt_tokens"] - cached
        if b" 200 " not in (status or b"") or not self.times:
            sys.exit(f"{server.name} answered {status} with {len(self.times)} tokens")


async def stream(server, messages, tokens):
    """Asks for an answer, and gives what came when it has ended."""
    body = {
        "model": server.model,
        "messages": messages,
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(lambda: Stream(head.encode() + data), "127.0.0.1", server.port)
    await stream.ended
    return stream


def question(number, seed):
    return [{"role": "user", "content": f"Tell me story number {number} of set {seed}, about a fox."}]


async def crowd(server, streams, tokens, seed):
    """Of all together: tokens of answers per second, tokens of answers and prompts, the slowest stream's time in those of the median."""
    begun = time.monotonic()
    answers = await asyncio.gather(*(stream(server, question(i, seed), tokens) for i in range(streams)))
    wall = time.monotonic() - begun
    answers = [Streamed(server, answer) for answer in answers]
    ends = [answer.times[-1] for answer in answers]
    computed = streams * tokens + sum(answer.computed for answer in answers)
    return streams * tokens / wall, computed / wall, max(ends) / statistics.median(ends)


def prefill_rate(args):
    """Tokens of prompts that the same model computes per second by itself, on the same threads."""
    options = ["-q", "--json", "--no-limits", "-p", "512", "-r", "3", "-t", str(args.threads), "--device", "cpu", "-m", args.model]
    done = subprocess.run([args.metallic, "bench", *options], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)[0]["median"]


async def shared_prefix(server, seed):
    """Time to the first token of the first and the second request with the same long system prompt."""
    rules = " ".join(f"Rule {i} of {seed}: be kind and brief." for i in range(110))
    ask = lambda text: [{"role": "system", "content": rules}, {"role": "user", "content": text}]
    first = await stream(server, ask("Who are you?"), 2)
    second = await stream(server, ask("What is a fox?"), 2)
    return Streamed(server, first).times[0], Streamed(server, second).times[0]


async def arrival(server, seed):
    """The ordinary time between two tokens of four answers, and the longest while a prompt of 4,000 tokens arrives."""
    running = [asyncio.create_task(timed(server, question(i, seed), 160)) for i in range(4)]
    await asyncio.sleep(0.4)
    long = [{"role": "user", "content": " ".join(f"Word {i} of {seed}." for i in range(450))}]
    begun = time.monotonic()
    first = Streamed(server, await stream(server, long, 2)).times[0]
    gaps, ordinary = [], []
    for task in running:
        times = await task
        for before, after in zip(times, times[1:]):
            (gaps if begun <= after <= begun + first else ordinary).append(after - before)
    return statistics.median(ordinary), max(gaps), first


async def timed(server, messages, tokens):
    start = time.monotonic()
    return [start + after for after in Streamed(server, await stream(server, messages, tokens)).times]


def show(title, rows):
    print(f"\n{title}")
    for row in rows:
        print("  " + row)


async def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metallic", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", default="1,8,32,64")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    counts = [int(count) for count in args.streams.split(",")]
    most, port = max(counts), free_port()
    command = [args.metallic, "serve", "-m", f"bench={args.model}", "--port", str(port), "--parallel", str(most), "-t", str(args.threads)]
    servers = [Server("metallic", command, port, "bench")]
    if args.peer:
        port = free_port()
        context = str(most * 512 + 8192)
        command = [sys.executable, "-c", PEER, args.model, str(port), str(args.threads), str(most), context]
        servers.append(Server("llama.cpp", command, port, "bench"))
    figures = {}
    try:
        for server in servers:
            await server.ready()
            await crowd(server, 2, 8, "warm-up")
        for streams in counts:
            speeds, prefills = {server.name: [] for server in servers}, []
            for turn in range(args.rounds):
                for server in servers if turn % 2 == 0 else servers[::-1]:
                    speeds[server.name].append(await crowd(server, streams, args.tokens, f"{turn}-{streams}"))
                if streams == most:
                    prefills.append(prefill_rate(args))
            rows = []
            for name, found in speeds.items():
                rate, computed, spread = (statistics.median(column) for column in zip(*found))
                figures[f"{name} {streams}"] = {
                    "tokens_per_second": rate, "with_prompts_per_second": computed, "slowest_over_median": spread
                }
                rows.append(
                    f"{name:10} {rate:9.1f} tokens/s, {computed:9.1f} with those of prompts   slowest stream {spread:.2f} x median"
                )
            if prefills:
                rate, own = statistics.median(prefills), figures[f"metallic {streams}"]
                figures["prefill"] = {"tokens_per_second": rate}
                rows.append(
                    f"prompts by themselves {rate:.1f} tokens/s; of that are {100 * own['tokens_per_second'] / rate:.0f} %, "
                    f"and {100 * own['with_prompts_per_second'] / rate:.0f} % with those of prompts"
                )
            if args.peer:
                ratio = figures[f"metallic {streams}"]["tokens_per_second"] / figures[f"llama.cpp {streams}"]["tokens_per_second"]
                rows.append(f"ratio      {ratio:9.2f}")
            show(f"{streams} streams of {args.tokens} tokens", rows)
        pairs = [await shared_prefix(servers[0], turn) for turn in range(args.rounds)]
        shares = [second / first for first, second in pairs]
        first, second = (statistics.median(column) for column in zip(*pairs))
        figures["shared prefix"] = {"first_s": first, "second_s": second, "share": statistics.median(shares)}
        show("a system prompt that two requests share", [
            f"first token after {first * 1e3:.1f} ms, then {second * 1e3:.1f} ms: {100 * statistics.median(shares):.1f} %"
        ])
        waits = [await arrival(servers[0], turn) for turn in range(args.rounds)]
        ordinary, longest, ttft = (statistics.median(column) for column in zip(*waits))
        rounds = ", ".join(f"{wait[1] / wait[0]:.1f}" for wait in waits)
        figures["arrival"] = {"step_s": ordinary, "longest_s": longest, "steps": longest / ordinary, "ttft_s": ttft}
        show("a prompt of some 4,000 tokens arrives while four answers run", [
            f"{ordinary * 1e3:.1f} ms between tokens, at most {longest * 1e3:.1f} ms then: {longest / ordinary:.1f} steps ({rounds}); "
            f"the newcomer's first token after {ttft:.2f} s"
        ])
    finally:
        for server in servers:
            server.process.terminate()
    if args.json:
        with open(args.json, "w") as out:
            json.dump(figures, out, indent=1)


asyncio.run(main())
