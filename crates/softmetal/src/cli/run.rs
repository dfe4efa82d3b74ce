//! `softmetal run`.

use std::{collections::BTreeMap, fmt, path::PathBuf, process::ExitCode, time::Duration};

use softmetal::{
    Argument, ArgumentKind, CheckOptions, Device, Flavour, FunctionConstant, Log, Outcome, Pipeline, Report,
    Sampler, Severity, Source, Stats,
};

use super::{
    Failure, Printer, SourceOptions,
    data::{self, Content, Data, Type},
    junit::{self, Case},
    show,
    textures::{self, Given},
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` file.
    pub(super) file: PathBuf,
    /// The kernel's host name.
    pub(super) kernel: String,
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
    pub(super) save: Vec<String>,
    /// What a buffer must hold at the end, element by element.
    #[arg(long, value_name = "INDEX=DATA")]
    expect: Vec<String>,
    /// How far an element may be from what --expect says, as a part of it where that is more than 1.
    #[arg(long, default_value_t = 0.0, value_name = "NUMBER")]
    tolerance: f64,
    /// A texture: its texels (a file, zeros or rand), its size and its format. What it is of, the kernel says: the last size is its
    /// depth or its layers.
    #[arg(long = "texture", value_name = "INDEX=TEXELS:WIDTH[xHEIGHT[xDEPTH]]:FORMAT")]
    textures: Vec<String>,
    /// Write the texels of a texture to a file at the end.
    #[arg(long, value_name = "INDEX=FILE")]
    pub(super) save_texture: Vec<String>,
    /// A sampler: words of pixel, linear, clamp_to_zero, clamp_to_edge, clamp_to_border, repeat, mirrored_repeat, opaque_black,
    /// opaque_white; it is normalized, nearest and clamp_to_edge otherwise.
    #[arg(long = "sampler", value_name = "INDEX=WORD,WORD…")]
    samplers: Vec<String>,
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
    pub(super) check: bool,
    #[command(flatten)]
    checks: Checks,
    /// After a crash go on with the other threads, and show every mistake that is found.
    #[arg(long)]
    keep_going: bool,
    /// Run so many times, each in another order, and compare the results.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub(super) seeds: u64,
    /// Stop a run after so many seconds.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    time_limit: u64,
    /// How many elements of each output to print.
    #[arg(long, default_value_t = 8, value_name = "COUNT")]
    pub(super) show: usize,
    /// Write the result as JUnit XML, as CI services read it.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
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
    /// What texels are that a texture does not have: error, warning or off.
    #[arg(long, value_name = "SEVERITY", default_value = "warning", value_parser = ["error", "warning", "off"])]
    texture_bounds: String,
    /// Run the lanes of a simdgroup together from access to access, as GPUs of today do (with --check).
    #[arg(long, requires = "check")]
    lockstep: bool,
}

/// All that the runs of one command have seen.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) reports: Vec<Report>,
    pub(super) stats: Stats,
    pub(super) elapsed: Duration,
    /// Seeds whose results are not those of the run in order, with what differs.
    pub(super) differing: Vec<(u64, Place)>,
    /// Where they differ and accesses are seen: whether all agree as long as lanes go in lockstep.
    pub(super) in_lockstep: Option<bool>,
    /// Results that are not what was expected.
    pub(super) unexpected: Vec<String>,
    pub(super) logs: Vec<Log>,
}

/// What a result lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Buffer(u32),
    Texture(u32),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(index) => write!(f, "buffer {index}"),
            Self::Texture(index) => write!(f, "texture {index}"),
        }
    }
}

/// What kernels read and write.
#[derive(Debug, Clone, Default)]
pub(super) struct Memory {
    pub(super) buffers: Buffers,
    pub(super) textures: Vec<Given>,
}

impl Memory {
    /// The first result that is another than in `other`.
    fn differs(&self, other: &Self, shown: &[u32]) -> Option<Place> {
        let buffer = shown.iter().find(|index| self.buffers[*index].bytes != other.buffers[*index].bytes);
        let textures = self.textures.iter().zip(&other.textures);
        let texture =
            || textures.clone().find(|(a, b)| a.written && a.bytes != b.bytes).map(|(a, _)| a.index);
        buffer.map(|index| Place::Buffer(*index)).or_else(|| texture().map(Place::Texture))
    }
}

/// What came of a command.
pub(super) struct Executed {
    pub(super) summary: Summary,
    pub(super) shown: Vec<u32>,
    pub(super) results: Memory,
}

impl Executed {
    /// What is wrong with the kernel, in the words of the command line; nothing if nothing is.
    pub(super) fn failures(&self, seeds: u64) -> Vec<String> {
        let errors = self.summary.reports.iter().filter(|report| report.severity == Severity::Error);
        let mut found: Vec<String> = errors.map(ToString::to_string).collect();
        found.extend(self.summary.unexpected.iter().map(|text| format!("error: {text}")));
        found.extend(show::schedules(&self.summary, seeds).map(|text| format!("error: {text}")));
        found
    }
}

pub(super) fn run(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let executed = execute(arguments);
    if let Some(path) = &arguments.junit {
        let case = Case::of_run(arguments, &executed);
        junit::write(path, &arguments.file.display().to_string(), &[case])?;
    }
    let executed = executed?;
    if printer.json {
        Printer::json(&show::as_json(arguments, &executed));
    } else {
        show::show(arguments, printer, &executed);
    }
    let failed = !executed.failures(arguments.seeds).is_empty();
    Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Runs the kernel as often as was asked for.
pub(super) fn execute(arguments: &Arguments) -> Result<Executed, Failure> {
    let (buffers, shown) = buffers(arguments)?;
    let aliases = aliases(arguments, &buffers)?;
    let source = Source::from_file(&arguments.file)?;
    let flavour = if arguments.check { Flavour::Checked } else { Flavour::Plain };
    let compiler = arguments.source.compiler()?.flavour(flavour).only([&arguments.kernel]);
    let library = compiler.compile(&source)?;
    let mut pipeline = Pipeline::new(&library, &arguments.kernel)?;
    for (index, bytes) in constants(arguments, library.constants())? {
        pipeline = pipeline.constant(index, bytes)?;
    }
    let textures = textures::given(&arguments.textures, pipeline.kernel())?;
    let samplers = textures::samplers(&arguments.samplers)?;
    let inputs = Inputs { arguments, aliases: &aliases, samplers: &samplers };
    let given = Memory { buffers, textures };
    let (mut summary, mut results) = (Summary::default(), given.clone());
    for seed in 0..arguments.seeds {
        let mut memory = given.clone();
        summary.add(inputs.run_once(&pipeline, seed, arguments.checks.lockstep, &mut memory)?);
        if seed == 0 {
            results = memory;
        } else if let Some(place) = memory.differs(&results, &shown) {
            summary.differing.push((seed, place));
        }
    }
    if arguments.check && !arguments.checks.lockstep && !summary.differing.is_empty() {
        summary.in_lockstep = Some(inputs.agree_in_lockstep(&pipeline, &shown, &given)?);
    }
    for text in &arguments.expect {
        let compared = data::compare(text, arguments.tolerance, &results.buffers);
        summary.unexpected.extend(named("--expect", text, compared)?);
    }
    show::save(arguments, &results)?;
    Ok(Executed { summary, shown, results })
}

pub(super) type Buffers = BTreeMap<u32, Data>;

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
pub(super) fn named<T>(option: &str, text: &str, parsed: Result<T, Failure>) -> Result<T, Failure> {
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
    samplers: &'a [(u32, Sampler)],
}

impl Inputs<'_> {
    fn run_once(
        &self,
        pipeline: &Pipeline,
        seed: u64,
        lockstep: bool,
        memory: &mut Memory,
    ) -> Result<Outcome, Failure> {
        let (arguments, device) = (self.arguments, Device::new());
        let textures = memory.textures.iter().map(Given::texture).collect::<Result<Vec<_>, _>>()?;
        let mut dispatch = device.dispatch_of(pipeline).seed(seed);
        for (index, data) in &mut memory.buffers {
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
        for (given, texture) in memory.textures.iter().zip(&textures) {
            dispatch = dispatch.texture(given.index, texture);
        }
        for (index, sampler) in self.samplers {
            dispatch = dispatch.sampler(*index, *sampler);
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
        options.texture_bounds = severity(&arguments.checks.texture_bounds);
        if arguments.keep_going {
            options.max_reports = usize::MAX;
            dispatch = dispatch.keep_going();
        }
        if lockstep {
            dispatch = dispatch.lockstep();
        }
        let limit = Duration::from_secs(arguments.time_limit);
        let outcome = dispatch.checks(options).time_limit(limit).run()?;
        for (given, texture) in memory.textures.iter_mut().zip(&textures) {
            given.bytes = texture.bytes()?;
        }
        Ok(outcome)
    }

    /// Whether the same schedules give one result where the lanes of a simdgroup stay together.
    fn agree_in_lockstep(&self, pipeline: &Pipeline, shown: &[u32], given: &Memory) -> Result<bool, Failure> {
        let mut first: Option<Memory> = None;
        for seed in 0..self.arguments.seeds {
            let mut memory = given.clone();
            self.run_once(pipeline, seed, true, &mut memory)?;
            match &first {
                Some(first) if memory.differs(first, shown).is_some() => return Ok(false),
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
