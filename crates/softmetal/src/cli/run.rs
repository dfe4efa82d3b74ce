//! `softmetal run`.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Duration};

use serde_json::{Value, json};
use softmetal::{
    Argument, ArgumentKind, CheckOptions, Device, Flavour, FunctionConstant, Log, Outcome, Pipeline, Report,
    Severity, Source, Stats,
};

use super::{
    Failure, Printer, SourceOptions,
    data::{self, Content, Data, Type},
    style,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` file.
    file: PathBuf,
    /// The kernel's host name.
    kernel: String,
    /// Threads of the whole grid.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = size, required_unless_present = "groups")]
    threads: Option<[u32; 3]>,
    /// Threadgroups of the grid, instead of threads.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = size, conflicts_with = "threads")]
    groups: Option<[u32; 3]>,
    /// Threads of a threadgroup.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = size, default_value = "32")]
    threadgroup: [u32; 3],
    /// A buffer: TYPE:rand:COUNT[:LOW..HIGH], TYPE:zeros|ones|seq:COUNT, TYPE:VALUE,VALUE…[+TYPE:…], a file, or alias:INDEX for the
    /// memory of another. With @BYTES the kernel sees it from there on.
    #[arg(long = "buffer", value_name = "INDEX[@BYTES]=DATA")]
    buffers: Vec<String>,
    /// A buffer that starts as zeros and is shown at the end; INDEX alone shows one given by --buffer.
    #[arg(long = "out", value_name = "INDEX=TYPE:COUNT")]
    outputs: Vec<String>,
    /// Write the bytes of a buffer to a file at the end.
    #[arg(long, value_name = "INDEX=FILE")]
    save: Vec<String>,
    /// A table of functions that are marked `[[visible]]`.
    #[arg(long = "functions", value_name = "INDEX=NAME,NAME…")]
    functions: Vec<String>,
    /// Length of a `[[threadgroup(n)]]` argument; may be 0.
    #[arg(long = "threadgroup-memory", value_name = "INDEX=BYTES")]
    threadgroup_memory: Vec<String>,
    /// Set a function constant.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    constants: Vec<String>,
    /// Check every access to memory.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    checks: Checks,
    /// After a crash go on with the other threads, and show every mistake that is found.
    #[arg(long)]
    keep_going: bool,
    /// Run so many times, each in another order, and compare the results.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    seeds: u64,
    /// Stop a run after so many seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    time_limit: u64,
    /// How many elements of each output to print.
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    show: usize,
    #[command(flatten)]
    source: SourceOptions,
}

/// What checked runs look at, and how.
#[derive(Debug, clap::Args)]
struct Checks {
    /// Report infinities and NaN among the results (with --check).
    #[arg(long, requires = "check")]
    non_finite: bool,
    /// What a race across `mem_none` barriers is: error, warning or off.
    #[arg(long, value_name = "SEVERITY", default_value = "warning", value_parser = ["error", "warning", "off"])]
    mem_none: String,
    /// What barriers and shuffles are that not all threads take part in: error, warning or off.
    #[arg(long, value_name = "SEVERITY", default_value = "error", value_parser = ["error", "warning", "off"])]
    divergence: String,
    /// What racing writes of the same value are: error, warning or off.
    #[arg(long, value_name = "SEVERITY", default_value = "warning", value_parser = ["error", "warning", "off"])]
    same_value: String,
    /// Run the lanes of a simdgroup together from access to access, as GPUs of today do (with --check).
    #[arg(long, requires = "check")]
    lockstep: bool,
}

/// All that the runs of one command have seen.
#[derive(Debug, Default)]
struct Summary {
    reports: Vec<Report>,
    stats: Stats,
    elapsed: Duration,
    /// Seeds whose results are not those of the run in order, with the buffer that differs.
    differing: Vec<(u64, u32)>,
    /// Where they differ and accesses are seen: whether all agree as long as lanes go in lockstep.
    in_lockstep: Option<bool>,
    logs: Vec<Log>,
}

pub(super) fn run(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let (buffers, shown) = buffers(arguments)?;
    let aliases = aliases(arguments, &buffers)?;
    let inputs = Inputs { arguments, aliases: &aliases };
    let source = Source::from_file(&arguments.file)?;
    let flavour = if arguments.check { Flavour::Checked } else { Flavour::Plain };
    let compiler = arguments.source.compiler()?.flavour(flavour).only([&arguments.kernel]);
    let library = compiler.compile(&source)?;
    let mut pipeline = Pipeline::new(&library, &arguments.kernel)?;
    for (index, bytes) in constants(arguments, library.constants())? {
        pipeline = pipeline.constant(index, bytes)?;
    }
    let (mut summary, mut results) = (Summary::default(), buffers.clone());
    for seed in 0..arguments.seeds {
        let mut memory = buffers.clone();
        summary.add(inputs.run_once(&pipeline, seed, arguments.checks.lockstep, &mut memory)?);
        if seed == 0 {
            results = memory;
        } else if let Some(index) = shown.iter().find(|index| memory[*index].bytes != results[*index].bytes) {
            summary.differing.push((seed, *index));
        }
    }
    if arguments.check && !arguments.checks.lockstep && !summary.differing.is_empty() {
        summary.in_lockstep = Some(inputs.agree_in_lockstep(&pipeline, &shown, &buffers)?);
    }
    save(arguments, &results)?;
    if printer.json {
        Printer::json(&as_json(arguments, &summary, &shown, &results));
    } else {
        show(arguments, printer, &summary, &shown, &results);
    }
    let failed = summary.reports.iter().any(|report| report.severity == Severity::Error);
    Ok(if failed || !summary.differing.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

type Buffers = BTreeMap<u32, Data>;

/// The buffers by index, and which of them are shown.
fn buffers(arguments: &Arguments) -> Result<(Buffers, Vec<u32>), Failure> {
    let mut buffers = Buffers::new();
    let mut insert = |index: u32, data: Data| match buffers.insert(index, data) {
        Some(_) => Err(Failure::Argument(format!("buffer {index} is given twice"))),
        None => Ok(()),
    };
    for text in &arguments.buffers {
        if let (index, Content::Own(data)) = named("--buffer", text, data::buffer(text))? {
            insert(index, data)?;
        }
    }
    let mut shown = Vec::new();
    for text in &arguments.outputs {
        let (index, data) = named("--out", text, data::output(text))?;
        if let Some(data) = data {
            insert(index, data)?;
        }
        shown.push(index);
    }
    match shown.iter().find(|index| !buffers.contains_key(index)) {
        Some(index) => {
            Err(Failure::Argument(format!("--out {index}: give its type and length, like {index}=f32:1024")))
        }
        None => Ok((buffers, shown)),
    }
}

fn constants(arguments: &Arguments, known: &[FunctionConstant]) -> Result<Vec<(u32, Vec<u8>)>, Failure> {
    let mut found = Vec::new();
    for text in &arguments.constants {
        let (name, value) = data::assignment(text)?;
        let constant = known.iter().find(|c| c.name == name || name.parse() == Ok(c.index));
        let constant = constant.ok_or_else(|| {
            let names: Vec<_> = known.iter().map(|constant| constant.name.as_str()).collect();
            let names = names.join(", ");
            Failure::Argument(format!("--set {text}: no function constant `{name}`; the source has {names}"))
        })?;
        // A vector type is its element's name and a digit.
        let element = constant.type_text.trim_start_matches("metal::").trim_end_matches(['2', '3', '4']);
        let kind = Type::named(element).or_else(|| Type::named(&constant.type_text)).ok_or_else(|| {
            Failure::Argument(format!("--set {text}: the type of `{name}` is `{}`", constant.type_text))
        })?;
        let mut bytes = Vec::new();
        named("--set", text, value.split(',').try_for_each(|part| kind.parse(part, &mut bytes)))?;
        // A vector of three is as long as one of four.
        if kind.size() * 3 == bytes.len() && constant.size as usize == kind.size() * 4 {
            bytes.resize(constant.size as usize, 0);
        }
        found.push((constant.index, bytes));
    }
    Ok(found)
}

/// Says which option an argument was given to that cannot be.
fn named<T>(option: &str, text: &str, parsed: Result<T, Failure>) -> Result<T, Failure> {
    parsed.map_err(|failure| Failure::Argument(format!("{option} {text}: {failure}")))
}

/// Other indices of memory that is bound already: which, of which, from where on.
type Aliases = Vec<(u32, u32, usize)>;

fn aliases(arguments: &Arguments, buffers: &Buffers) -> Result<Aliases, Failure> {
    let mut found = Aliases::new();
    for text in &arguments.buffers {
        let (index, Content::Alias { of, offset }) = named("--buffer", text, data::buffer(text))? else {
            continue;
        };
        let wrong = if buffers.contains_key(&index) || found.iter().any(|(other, ..)| *other == index) {
            Some(format!("buffer {index} is given twice"))
        } else if !buffers.contains_key(&of) {
            Some(format!("no buffer {of} is given that has memory of its own"))
        } else {
            None
        };
        if let Some(wrong) = wrong {
            return Err(Failure::Argument(format!("--buffer {text}: {wrong}")));
        }
        found.push((index, of, offset));
    }
    Ok(found)
}

fn severity(text: &str) -> Option<Severity> {
    match text {
        "error" => Some(Severity::Error),
        "warning" => Some(Severity::Warning),
        _ => None,
    }
}

/// What all runs of one command have in common.
struct Inputs<'a> {
    arguments: &'a Arguments,
    aliases: &'a [(u32, u32, usize)],
}

impl Inputs<'_> {
    fn run_once(
        &self,
        pipeline: &Pipeline,
        seed: u64,
        lockstep: bool,
        memory: &mut Buffers,
    ) -> Result<Outcome, Failure> {
        let (arguments, device) = (self.arguments, Device::new());
        let mut dispatch = device.dispatch_of(pipeline).seed(seed);
        for (index, data) in memory.iter_mut() {
            let seen_by = |argument: &Argument| {
                let aliases = self.aliases.iter().filter(|(_, of, _)| of == index).map(|(alias, ..)| alias);
                aliases.chain([index]).any(|index| argument.kind == ArgumentKind::Buffer(*index))
            };
            let mut bound = pipeline.kernel().arguments.iter().filter(|a| seen_by(a)).peekable();
            let read_only = bound.peek().is_some() && bound.all(|argument| argument.read_only);
            dispatch = if read_only {
                dispatch.buffer_at(*index, &data.bytes, data.offset)
            } else {
                dispatch.buffer_mut_at(*index, &mut data.bytes, data.offset)
            };
        }
        for (index, of, offset) in self.aliases {
            dispatch = dispatch.alias(*index, *of, *offset);
        }
        for text in &arguments.functions {
            let (index, names) = named("--functions", text, data::indexed(text))?;
            let names: Vec<&str> = names.split(',').map(str::trim).collect();
            let bound = dispatch.functions(index, &names).map_err(Failure::from);
            dispatch = named("--functions", text, bound)?;
        }
        for text in &arguments.threadgroup_memory {
            let (index, bytes) = named("--threadgroup-memory", text, data::length(text))?;
            dispatch = dispatch.threadgroup_memory(index, bytes);
        }
        dispatch = match (arguments.threads, arguments.groups) {
            (Some(threads), _) => dispatch.threads(threads, arguments.threadgroup),
            (None, groups) => dispatch.threadgroups(groups.unwrap_or([1; 3]), arguments.threadgroup),
        };
        let mut options = CheckOptions::default();
        options.non_finite = arguments.checks.non_finite;
        options.mem_none = severity(&arguments.checks.mem_none);
        options.divergence = severity(&arguments.checks.divergence);
        options.same_value = severity(&arguments.checks.same_value);
        if arguments.keep_going {
            options.max_reports = usize::MAX;
            dispatch = dispatch.keep_going();
        }
        if lockstep {
            dispatch = dispatch.lockstep();
        }
        let limit = Duration::from_secs(arguments.time_limit);
        Ok(dispatch.checks(options).time_limit(limit).run()?)
    }

    /// Whether the same schedules give one result where the lanes of a simdgroup stay together.
    fn agree_in_lockstep(
        &self,
        pipeline: &Pipeline,
        shown: &[u32],
        buffers: &Buffers,
    ) -> Result<bool, Failure> {
        let mut first: Option<Buffers> = None;
        for seed in 0..self.arguments.seeds {
            let mut memory = buffers.clone();
            self.run_once(pipeline, seed, true, &mut memory)?;
            match &first {
                Some(first) if shown.iter().any(|index| memory[index].bytes != first[index].bytes) => {
                    return Ok(false);
                }
                Some(_) => {}
                None => first = Some(memory),
            }
        }
        Ok(true)
    }
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.elapsed += outcome.elapsed;
        self.stats = outcome.stats;
        if self.logs.is_empty() {
            self.logs = outcome.logs;
        }
        for report in outcome.reports {
            let known = |r: &Report| r.kind == report.kind && r.at == report.at && r.other == report.other;
            if !self.reports.iter().any(known) {
                self.reports.push(report);
            }
        }
    }
}

fn save(arguments: &Arguments, results: &Buffers) -> Result<(), Failure> {
    for text in &arguments.save {
        let split = text.split_once('=').and_then(|(index, path)| Some((index.parse::<u32>().ok()?, path)));
        let (index, path) =
            split.ok_or_else(|| Failure::Argument(format!("--save {text}: need INDEX=FILE")))?;
        let data = results
            .get(&index)
            .ok_or_else(|| Failure::Argument(format!("--save {text}: no buffer {index} is given")))?;
        std::fs::write(path, &data.bytes)
            .map_err(|error| Failure::Argument(format!("cannot write {path}: {error}")))?;
    }
    Ok(())
}

fn as_json(arguments: &Arguments, summary: &Summary, shown: &[u32], results: &Buffers) -> Value {
    let outputs: BTreeMap<String, Value> = shown
        .iter()
        .map(|index| {
            let data = &results[index];
            // JSON has no NaN: such elements are null.
            (index.to_string(), json!(data.kind.decode(&data.bytes)))
        })
        .collect();
    json!({
        "kernel": arguments.kernel,
        "checked": arguments.check,
        "seeds": arguments.seeds,
        "milliseconds": summary.elapsed.as_secs_f64() * 1e3,
        "stats": summary.stats,
        "reports": summary.reports,
        "schedule_dependent": summary.differing.iter().map(|(seed, buffer)| json!({ "seed": seed, "buffer": buffer })).collect::<Vec<_>>(),
        "agree_in_lockstep": summary.in_lockstep,
        "logs": summary.logs,
        "outputs": outputs,
    })
}

fn show(arguments: &Arguments, printer: Printer, summary: &Summary, shown: &[u32], results: &Buffers) {
    let paint = printer.style;
    for log in &summary.logs {
        let ([x, y, z], [gx, gy, gz]) = (log.thread, log.threadgroup);
        let who = paint.dim(&format!("thread {x},{y},{z} of threadgroup {gx},{gy},{gz}:"));
        style::print(&format!("{who} {}", log.text));
    }
    if summary.stats.lost_messages > 0 {
        style::print(&paint.dim(&format!("… and {} more messages", summary.stats.lost_messages)));
    }
    for report in &summary.reports {
        style::print(&paint.report(report));
        style::print("");
    }
    for index in shown {
        let data = &results[index];
        let values = data.kind.decode(&data.bytes);
        let short =
            |value: &f64| format!("{value:.6}").trim_end_matches('0').trim_end_matches('.').to_owned();
        let first: Vec<String> = values.iter().take(arguments.show).map(short).collect();
        let more = if values.len() > arguments.show { " …" } else { "" };
        let odd = values.iter().filter(|value| !value.is_finite()).count();
        let finite = || values.iter().copied().filter(|value| value.is_finite());
        let (low, high) = finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let mean = finite().sum::<f64>() / finite().count().max(1) as f64;
        style::print(&format!("{}  {}{more}", paint.bold(&format!("buffer {index}")), first.join(" ")));
        let odd = if odd > 0 { paint.red(&format!(", {odd} not finite")) } else { String::new() };
        style::print(&format!(
            "{}{odd}",
            paint.dim(&format!("  {} elements, {low} to {high}, mean {mean}", values.len()))
        ));
    }
    if !summary.differing.is_empty() {
        let seeds: Vec<String> = summary.differing.iter().take(5).map(|(seed, _)| seed.to_string()).collect();
        let more = if summary.differing.len() > 5 { ", …" } else { "" };
        style::print(&format!(
            "{}: {} of {} schedules give other results than the one in order (seeds {}{more}): the result depends on the schedule",
            paint.red("error"),
            summary.differing.len(),
            arguments.seeds,
            seeds.join(", ")
        ));
        match summary.in_lockstep {
            Some(true) => style::print(
                "  = while the lanes of a simdgroup go in lockstep all agree: barriers are missing within simdgroups",
            ),
            Some(false) => style::print("  = in lockstep they differ too: it is not for lanes alone"),
            None => {}
        }
    }
    let errors = summary.reports.iter().filter(|report| report.severity == Severity::Error).count();
    let others = summary.reports.len() - errors;
    let verdict = match (errors, others, arguments.check) {
        (0, 0, true) => paint.green("no report"),
        (0, 0, false) => "not checked".to_owned(),
        _ => format!("{}, {}", style::count(errors, "error"), style::count(others, "warning")),
    };
    let runs = if arguments.seeds == 1 { String::new() } else { format!(", {} schedules", arguments.seeds) };
    let milliseconds = summary.elapsed.as_secs_f64() * 1e3;
    let groups = style::count(summary.stats.threadgroups as usize, "threadgroup");
    style::print(&format!("{}: {groups}{runs}, {milliseconds:.3} ms, {verdict}", arguments.kernel));
}

/// `64`, `64,2` or `64,2,1`.
fn size(text: &str) -> Result<[u32; 3], String> {
    let parts: Option<Vec<u32>> =
        text.split([',', 'x']).map(|part| part.trim().parse().ok().filter(|n| *n > 0)).collect();
    match parts.as_deref() {
        Some([x]) => Ok([*x, 1, 1]),
        Some([x, y]) => Ok([*x, *y, 1]),
        Some([x, y, z]) => Ok([*x, *y, *z]),
        _ => Err("need one to three positive numbers, like 256 or 16,16".into()),
    }
}
