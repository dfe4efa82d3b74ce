//! Chores of the repository, run as `cargo xtask NAME`.

mod apple_speed;
mod bench;
mod browser;
mod checks;
mod clang;
mod clients;
mod guest;
mod macos;
mod metal_on_linux;
mod models;
mod process;
mod programs;
mod ptx;
mod replay;
mod serve_bench;
mod soundness;
mod telemetry_cost;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask NAME [OPTIONS]

  test         fetch what the tests need and run every test
                 --all-models   the optional models must be there too
                 --quick        do not fetch the optional models
                 --offline      fetch nothing; use what is there
                 other options go to the test runner: cargo xtask test -p metallic-core
  clients      the packages openai, anthropic, langchain and schemathesis against a server with the test model; a part of `test`
                 options go to pytest: cargo xtask clients -k stream
  fmt          check the formatting
  lint         clippy on every target, warnings denied
  docs         build the documentation, warnings denied
  tidy         check the house rules that no compiler knows
  check-macos  type-check, lint and link for Apple Silicon, on Linux or on a Mac
                 --if-possible  succeed with a notice where the tools cannot be had
  metal-on-linux
               run the driver for Metal on Linux, against Metal.framework over softmetal: its tests, and those of the
               framework
                 --driver       without golden models, for which the library is built once more
                 command-line   `metallic run --device metal` alone: what it says must be what `--device soft` says
                 cargo ARGS...  any command of cargo in that build, such as `cargo test -p metallic-gpu`
                 copies FOLDER  the bindings for a workspace of your own, and what to do with them
                 mistakes [W..] plant each of a table of mistakes into a copy of the driver (those whose names have one of the
                                words): its tests must see it
                 executed       which lines of the driver its tests execute, and which no run here does; needs LLVM's tools:
                                `rustup component add llvm-tools`. --write: into docs/metal-without-a-mac.md
  guest        run the tests of a crate of somebody else's that uses objc2-metal, on Linux, against Metal.framework over softmetal
                 NAME[@VERSION] from the registry, such as candle-metal-kernels
                 --features F   of the crate, separated by commas
                 --test WORD    only tests whose names have it; may be given several times
                 --limit S      seconds for each test (default 300)
  bench        measure tokens per second
                 --peers        against llama.cpp, built here, in turns
                 --models F...  these files (default: SmolLM2 in Q4_0, Q4_1 and Q8_0)
                 --threads N, --rounds R, --json
                 --save         keep the figures, with machine and commit, in docs/benchmarks/history.jsonl (--history FILE: elsewhere)
                 --page         make docs/benchmarks.md and its pictures of what is kept (--check-page: only compare)
                 --compare A B  build two commits and measure them in turns; fails where B is slower by more than the noise
                 --compare-kept A B
                                the same of kept figures
  serve-bench  many streams at once on `metallic serve`: tokens per second, who waits how long
                 --peers        against llama.cpp's server, in turns
                 --model F, --streams N,N, --tokens N, --rounds R, --threads N, --json FILE
  telemetry-cost
               measure what telemetry costs, off and on, in turns
                 --before PROGRAM  a `metallic` of another commit, to compare `off` with (default: one is built in which no event is left)
                 --model F, --device D, --rounds R, --tokens N, --threads N
  apple-speed  write docs/apple-speed.md: what the plans of Apple's GPUs come to
                 --check        only compare; fails where it is not what the plans give
  ptx          make the kernels that NVIDIA GPUs need, for machines without a compiler: what models of known shapes ask for in
               every mixture of types (`metallic tool ptx --known`), and the models that tests know
                 -o FOLDER      where they go (default target/metallic-ptx); put it beside the program as `metallic-ptx`
                 -m MODEL       these models too; may be given several times
                 --no-golden    not those of the tests
                 --types, --kv-type, --capability, --units, --threads, --ops, --dry-run: as `metallic tool ptx --help` says
  replay       every check of the NVIDIA device as a folder: programs, PTX and a script, for a machine with such a GPU
                 FOLDER         where it goes (default target/replay); carry it there: sh FOLDER/replay.sh
                 --capability N compute capability of that GPU times ten (default 90)
                 --units N,…    its multiprocessors, or those of GPUs that plan alike (default 132,46: many and few)
  soundness    the unsafe code under Miri, AddressSanitizer and valgrind, as far as they can follow it; what is missing is
               installed (by rustup and apt), and what was not run is named
                 --quick        what takes seconds: by Miri, or by valgrind where there is no Miri; installs nothing
                 --all          fail where a tool cannot be had
                 WORD...        only checks whose names have one of them, such as Miri or metallic-cpu
  setup        fetch the test models and stop

Environment: METALLIC_TEST_MODELS (folder of the test models, default target/test-models),
METALLIC_SHARED (folder of larger test data, default ../shared, not needed), SOFTMETAL_PTXAS (NVIDIA's assembler, which
is fetched on Linux with x86-64 where none is named). Tests that need a clang, tmux or a browser with
chromedriver fail without it under METALLIC_TEST_ALL=1, which `test` sets; elsewhere they say that they prove nothing.";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let result = match name.as_str() {
        "test" => test::run(&rest),
        "clients" => clients::run(&rest),
        "setup" => test::setup(&rest),
        "fmt" => checks::fmt(),
        "lint" => checks::lint(),
        "docs" => checks::docs(),
        "tidy" => tidy::run(),
        "check-macos" => macos::run(&rest),
        "metal-on-linux" => metal_on_linux::run(&rest),
        "guest" => guest::run(&rest),
        "bench" => bench::run(&rest),
        "apple-speed" => apple_speed::run(&rest),
        "ptx" => ptx::run(&rest),
        "replay" => replay::run(&rest),
        "soundness" => soundness::soundness(&rest),
        "serve-bench" => serve_bench::run(&rest),
        "telemetry-cost" => telemetry_cost::run(&rest),
        "" | "help" | "-h" | "--help" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        other => Err(anyhow::anyhow!("no chore is called `{other}`; see `cargo xtask help`")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
