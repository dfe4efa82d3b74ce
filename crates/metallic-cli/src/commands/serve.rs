//! `metallic serve`: a model, or several, for every client of the OpenAI API.

mod log;

use std::{
    env, fs,
    net::{IpAddr, SocketAddr},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use metallic::{AdapterOptions, EngineOptions, Llm, LoadOptions, diff::Verification};
use metallic_server::{ModelSpec, Models, Server, ServerOptions};
use tokio::net::TcpListener;

use crate::{
    answer::Show,
    commands::{
        MODEL_HELP,
        options::{DeviceOptions, parse_adapter, parse_count},
        pull::parse_size,
        speculation::SpeculationOptions,
    },
    fail::Failure,
    hub::{DEFAULT_MODEL, HubError, ModelName},
    interrupt::{self, Listener},
    load, plan_dump,
    telemetry::TelemetryOptions,
    term::Ui,
    top::own::{Dashboard, Prepared},
};
use log::Log;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = format!("{MODEL_HELP}\n  METALLIC_API_KEY           keys, as `--api-key`, separated by commas\n\n{EXAMPLES}"))]
pub(crate) struct ServeArgs {
    /// Alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder; may be given several times. Clients call a model by its name, or by the
    /// name of its file; `NAME=MODEL` gives it another
    #[arg(short, long, value_name = "[NAME=]MODEL", default_value = DEFAULT_MODEL)]
    model: Vec<String>,
    /// Another name for a model: `gpt-4o-mini=smollm2`; may be given several times
    #[arg(long, value_name = "ALIAS=NAME", value_parser = parse_pair)]
    alias: Vec<(String, String)>,
    /// An adapter of the model and how much of it is taken [default: 1]; may be given several times. Requests choose with `adapters`
    #[arg(long, value_name = "PATH[=SCALE]", value_parser = parse_adapter)]
    lora: Vec<AdapterOptions>,
    /// Load models when somebody asks for them, and let those go that nobody uses when others need their room
    #[arg(long)]
    lazy: bool,
    /// A model that is loaded at the start and never goes, by its name; may be given several times
    #[arg(long, value_name = "NAME", requires = "lazy")]
    pin: Vec<String>,
    /// Memory that weights and caches of all models may take together, 16GB or 16GiB [default: what the machine has left]
    #[arg(long, value_name = "BYTES", value_parser = parse_size, requires = "lazy")]
    memory_budget: Option<u64>,
    /// Most seconds that a request waits for its model to be loaded
    #[arg(long, value_name = "SECONDS", value_parser = parse_count, default_value = "300", requires = "lazy")]
    load_timeout: NonZeroUsize,
    #[command(flatten)]
    device: DeviceOptions,
    /// A file with a chat template (Jinja) to use instead of the model's own
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Address to listen on; 0.0.0.0 for all of this machine
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Most tokens of prompt and answer together [default: what the model was made for]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    ctx: Option<NonZeroUsize>,
    /// Answers that are computed at once; more wait
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "64")]
    parallel: NonZeroUsize,
    /// Requests that wait besides them; more are told to come back later
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "256")]
    max_waiting: NonZeroUsize,
    #[command(flatten)]
    access: AccessOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Write a line of JSON for each request to FILE; `-` for stderr
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Put messages and answers into the log as well
    #[arg(long, requires = "log")]
    log_prompts: bool,
    #[command(flatten)]
    telemetry: TelemetryOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    /// Compute one operation of every N steps again by the reference, and say what is wrong: slower, for doubts about a device
    #[arg(long, value_name = "N", value_parser = parse_count)]
    verify: Option<NonZeroUsize>,
    /// Show the dashboard of `metallic top` meanwhile; leaving it ends the server as Ctrl-C does
    #[arg(long)]
    dashboard: bool,
}

/// Who may ask.
#[derive(Debug, Args)]
struct AccessOptions {
    /// A key that clients must send; may be given several times [env: METALLIC_API_KEY]
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// A file with a key on each line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Lets web pages of this origin ask, `https://example.org`, or of all: `*`; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// A name that clients may call this machine by, besides those of the loopback; may be given several times. On the loopback
    /// other names are refused
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
}

/// Most of everything.
#[derive(Debug, Args)]
struct LimitOptions {
    /// Most tokens of an answer [default: what the context holds]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_tokens: Option<NonZeroUsize>,
    /// Most seconds from a request to the end of its answer
    #[arg(long, value_name = "SECONDS", value_parser = parse_count, default_value = "600")]
    timeout: NonZeroUsize,
    /// Most seconds that answers have to end in after Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    shutdown_timeout: u32,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", value_parser = parse_count, default_value = "8388608")]
    max_body: NonZeroUsize,
    /// Most requests in work or waiting at once; more are told to come back later
    #[arg(long, value_name = "N", value_parser = parse_count, default_value = "512")]
    max_requests: NonZeroUsize,
    /// The same for each key
    #[arg(long, value_name = "N", value_parser = parse_count)]
    max_requests_per_key: Option<NonZeroUsize>,
}

const EXAMPLES: &str = "\
Examples:
  metallic serve                                          the default model on http://127.0.0.1:8080
  metallic serve -m qwen2.5-0.5b --port 9000 --parallel 16 --ctx 8192
  metallic serve -m small=smollm2 -m ./large.gguf --alias gpt-4o-mini=small
  metallic serve -m smollm2 -m ./large.gguf --lazy --pin smollm2 --memory-budget 16GiB
  metallic serve --host 0.0.0.0 --api-key-file keys.txt --log -
  metallic serve --speculate lookup --dashboard
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}]}'

Ctrl-C ends it: answers under way have `--shutdown-timeout` to end, a second one ends at once. SIGTERM does the same.";

pub(crate) fn run(args: &ServeArgs, ui: Ui) -> anyhow::Result<()> {
    let _telling = args.telemetry.start("metallic serve", ui)?;
    args.check()?;
    let dashboard = args.dashboard.then(Dashboard::prepare).transpose()?;
    let log = args.log.as_deref().map(Log::open).transpose()?;
    let options = args.server_options(log.as_ref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Templates and tokenizers: the cores are the model's.
        .max_blocking_threads(8)
        .build()
        .context("cannot start the server")?;
    // Before anything is loaded: a port that is taken is told at once.
    let address = SocketAddr::new(args.host, args.port);
    let listener = runtime.block_on(TcpListener::bind(address)).map_err(|error| {
        let reason = format!("cannot listen on {address}: {error}");
        Failure::new(reason, "another program may have the port: `--port` takes another, 0 any that is free")
    })?;
    let bound = listener.local_addr()?;
    let (models, looked_over) = args.models(ui)?;
    let server = Server::new(models, options)?;
    args.announce(bound, ui);
    let _listener = Listener::new();
    let terminated = heed_sigterm()?;
    let dashboard = dashboard.map(Prepared::start).transpose()?;
    if let Some(dashboard) = &dashboard {
        dashboard.pane().answer(&format!("http://{bound}\n"))?;
    }
    let looked_over = looked_over.into_iter().map(|verification| (verification, 0)).collect();
    let mut doubts = Doubts { looked_over, shown: dashboard.is_some() };
    let stopped =
        runtime.block_on(metallic_server::serve(listener, server, asked_to_stop(&terminated, &mut doubts)));
    // Work beside the runtime that nobody waits for any more is left behind.
    runtime.shutdown_background();
    drop(dashboard);
    stopped?;
    doubts.end(ui);
    ui.note("stopped");
    Ok(())
}

/// What looking over the models' steps has found, told as it is found.
struct Doubts {
    /// Each with how many of its warnings were told.
    looked_over: Vec<(Verification, usize)>,
    /// The dashboard has the terminal, and shows them.
    shown: bool,
}

impl Doubts {
    fn tell(&mut self) {
        if self.shown {
            return;
        }
        for (verification, told) in &mut self.looked_over {
            let warnings = verification.found().warnings;
            for warning in warnings.iter().skip(*told) {
                Ui { quiet: false }.note(&format!("warning: {warning}"));
            }
            *told = warnings.len();
        }
    }

    /// What is left to tell, and the count.
    fn end(mut self, ui: Ui) {
        self.shown = false;
        self.tell();
        for found in self.looked_over.iter().map(|(verification, _)| verification.found()) {
            ui.note(&format!("verified {} operations, {} were wrong", found.checked, found.failed));
        }
    }
}

/// Whether the system wants the program to end. A second SIGTERM ends it at once.
fn heed_sigterm() -> anyhow::Result<Arc<AtomicBool>> {
    let terminated = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    {
        use signal_hook::{consts::SIGTERM, flag};
        let ends = || flag::register_conditional_shutdown(SIGTERM, SIGTERM_STATUS, Arc::clone(&terminated));
        ends()
            .and_then(|_| flag::register(SIGTERM, Arc::clone(&terminated)))
            .context("cannot listen for SIGTERM")?;
    }
    Ok(terminated)
}

/// What shells say of a program that SIGTERM has ended.
#[cfg(unix)]
const SIGTERM_STATUS: i32 = 128 + signal_hook::consts::SIGTERM;

/// Ready once the user or the system wants the program to end.
async fn asked_to_stop(terminated: &AtomicBool, doubts: &mut Doubts) {
    while interrupt::check().is_ok() {
        if terminated.load(Ordering::Relaxed) {
            // The next Ctrl-C is the second word.
            interrupt::press();
        }
        doubts.tell();
        tokio::time::sleep(interrupt::POLL).await;
    }
}

impl ServeArgs {
    /// Refuses what does not go together, before anything is loaded.
    fn check(&self) -> anyhow::Result<()> {
        let for_one = [
            (!self.lora.is_empty(), "an adapter", "--lora"),
            (self.speculation.draft.is_some(), "a draft model", "--draft"),
        ];
        for (given, what, option) in for_one {
            if given && self.model.len() > 1 {
                let reason = format!("{what} belongs to one model, and there are several");
                return Err(Failure::new(reason, format!("give one model, or leave out `{option}`")).into());
            }
        }
        if self.lazy && self.verify.is_some() {
            let reason = "`--verify` tells what it has found of models that are there from the start";
            return Err(Failure::new(reason, "leave out `--lazy` or `--verify`").into());
        }
        if self.dashboard && self.log.as_deref() == Some(Path::new("-")) {
            let reason = "the dashboard and the log cannot both have the terminal";
            return Err(Failure::new(reason, "give `--log` a file, or leave out `--dashboard`").into());
        }
        Ok(())
    }

    /// The models, and what looking over their steps finds where that is asked for.
    fn models(&self, ui: Ui) -> anyhow::Result<(Models, Vec<Verification>)> {
        let mut looked_over = Vec::new();
        let patience = Duration::from_secs(self.load_timeout.get() as u64);
        let mut models = Models::new().memory_budget(self.memory_budget).load_time(patience);
        for text in &self.model {
            let (name, model) = named(text);
            if self.lazy {
                let spec = ModelSpec::new(load::path(model, ui)?).options(self.load_options(ui)?);
                let pinned = self.pin.contains(&name);
                ui.note(&format!(
                    "model {name}: {}",
                    if pinned { "stays loaded" } else { "loaded on demand" }
                ));
                models = models.register(name, spec.pinned(pinned))?;
                continue;
            }
            let llm = self.load(model, ui)?;
            looked_over.extend(llm.verification().cloned());
            let config = llm.engine().config();
            ui.note(&format!(
                "model {name} on {}: {} tokens of context, {} answers at once",
                llm.device(),
                config.context_length,
                config.max_sequences
            ));
            models = models.add(name, llm)?;
        }
        if let Some(unknown) =
            self.pin.iter().find(|pin| !self.model.iter().any(|text| named(text).0 == **pin))
        {
            let reason = format!("`--pin {unknown}` names no model that is served");
            return Err(Failure::new(reason, "`--pin` takes the name of a `--model`").into());
        }
        for (alias, name) in &self.alias {
            models = models.alias(alias, name)?;
        }
        Ok((models, looked_over))
    }

    fn load(&self, model: &str, ui: Ui) -> anyhow::Result<Llm> {
        let (path, options) = (load::path(model, ui)?, self.load_options(ui)?);
        if plan_dump::is_wanted() {
            load::dump_plan(&path, &options)?;
        }
        let spinner = ui.spinner(&format!("loading {}", path.display()));
        let llm = Llm::load_with(&path, &options).map_err(|error| load::repairable(model, error.into()))?;
        drop(spinner);
        load::tell(&options.open, ui);
        load::doubts(llm.tokenizer(), ui);
        self.speculation.tell(&llm, ui);
        Ok(llm)
    }

    fn load_options(&self, ui: Ui) -> anyhow::Result<LoadOptions> {
        let engine = EngineOptions::default()
            .kv_type(self.device.kv_type)
            .context(self.ctx.map(NonZeroUsize::get))
            .max_sequences(self.parallel.get())
            .max_waiting(self.max_waiting.get());
        Ok(LoadOptions::default()
            .device(self.device.device.clone())
            .open(self.device.open()?)
            .engine(engine)
            .model(self.device.read())
            .adapters(self.lora.as_slice())
            .speculation(self.speculation.resolve(ui)?)
            .verify(self.verify)
            .template(self.template.clone()))
    }

    fn server_options(&self, log: Option<&Log>) -> anyhow::Result<ServerOptions> {
        let (access, limits) = (&self.access, &self.limits);
        let seconds = |count: usize| Duration::from_secs(count as u64);
        let requests = limits.max_requests.get();
        let mut options = ServerOptions::default()
            .api_keys(access.keys()?)
            .cors_origins(access.cors.clone())
            .log_prompts(self.log_prompts)
            .body_bytes(limits.max_body.get())
            .request_time(seconds(limits.timeout.get()))
            .shutdown_time(seconds(limits.shutdown_timeout as usize))
            .max_tokens(limits.max_tokens.map(NonZeroUsize::get))
            .requests(requests)
            .requests_per_key(limits.max_requests_per_key.map_or(requests, NonZeroUsize::get));
        if !access.allow_host.is_empty() {
            let own = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
            options = options.allowed_hosts([access.allow_host.as_slice(), own.as_slice()].concat());
        }
        Ok(options.log(log.map(Log::sink)))
    }

    /// One line that says where, and another where that is open to everybody.
    fn announce(&self, bound: SocketAddr, ui: Ui) {
        let keys =
            if self.access.keys().is_ok_and(|keys| keys.is_empty()) { "no key needed" } else { "with a key" };
        ui.note(&format!(
            "listening on http://{bound} ({keys}, at most {} requests, {} s each)",
            self.limits.max_requests, self.limits.timeout
        ));
        if !bound.ip().is_loopback() && keys == "no key needed" {
            ui.note("note: everybody who reaches this machine may ask; `--api-key` asks for a key");
        }
    }
}

impl AccessOptions {
    fn keys(&self) -> anyhow::Result<Vec<String>> {
        let mut keys = self.api_key.clone();
        if let Some(path) = &self.api_key_file {
            let text = fs::read_to_string(path).map_err(|error| {
                let reason = format!("cannot read `{}`: {error}", path.display());
                Failure::new(reason, "check the path; the file holds a key on each line")
            })?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            let before = keys.len();
            keys.extend(lines.map(str::to_owned));
            if keys.len() == before {
                let reason = format!("`{}` has no keys", path.display());
                return Err(
                    Failure::new(reason, "write one on each line, or leave out `--api-key-file`").into()
                );
            }
        }
        if keys.is_empty()
            && let Some(set) = env::var_os("METALLIC_API_KEY")
        {
            let set = set.to_string_lossy();
            keys.extend(set.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned));
            if keys.is_empty() {
                let reason = "`METALLIC_API_KEY` is set and has no keys";
                return Err(Failure::new(reason, "put keys into it, or unset it to serve everybody").into());
            }
        }
        Ok(keys)
    }
}

/// `NAME=MODEL`, or a model by the name that it has already.
fn named(text: &str) -> (String, &str) {
    if let Some((name, model)) = text.split_once('=')
        && !name.is_empty()
        && !name.contains(['/', '\\'])
        && !Path::new(text).exists()
    {
        return (name.to_owned(), model);
    }
    let file = match ModelName::parse(text) {
        Ok(ModelName::Path(path)) | Err(HubError::NoSuchPath { path }) => path.canonicalize().unwrap_or(path),
        _ => return (text.to_owned(), text),
    };
    let is_gguf = file.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"));
    let name = if is_gguf { file.file_stem() } else { file.file_name() };
    (name.map_or_else(|| text.to_owned(), |name| name.to_string_lossy().into_owned()), text)
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let (alias, name) = text.split_once('=').ok_or("it is written ALIAS=NAME")?;
    Ok((alias.to_owned(), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_called_by_what_they_were_asked_for_as() {
        for (text, name, model) in [
            ("smollm2", "smollm2", "smollm2"),
            ("small=smollm2", "small", "smollm2"),
            ("owner/repo:Q8_0", "owner/repo:Q8_0", "owner/repo:Q8_0"),
            ("./models/Tiny-Q4.gguf", "Tiny-Q4", "./models/Tiny-Q4.gguf"),
            ("x=./models/a=b.gguf", "x", "./models/a=b.gguf"),
            ("./a=b.gguf", "a=b", "./a=b.gguf"),
        ] {
            assert_eq!(named(text), (name.to_owned(), model), "{text}");
        }
    }
}
