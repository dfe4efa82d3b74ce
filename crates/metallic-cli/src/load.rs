//! From a name to a model that runs.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Instant,
};

use metallic::{
    Llm, LoadOptions, Model, Tokenizer,
    core::{BLOCK_TOKENS, Backend, BackendError, CompileOptions, DType, DeviceInfo, Peaks, Program},
    device::{OpenOptions, Quarantined, Selection, Why, tuning::TuningSource},
    model::{FAMILIES, Source},
    telemetry,
};

use crate::{
    commands::options::{AnswerOptions, ModelOptions},
    fail::{self, Failure},
    hints,
    hub::{self, Cache, ModelName},
    plan_dump,
    term::Ui,
};

/// The model's path; fetches it if it is not on this machine.
pub(crate) fn path(model: &str, ui: Ui) -> anyhow::Result<PathBuf> {
    match ModelName::parse(model)? {
        ModelName::Path(path) => Ok(path),
        name => Ok(hub::obtain(&name, &Cache::from_env()?, ui)?),
    }
}

/// The model's path; an error if it is not on this machine.
pub(crate) fn local_path(model: &str) -> anyhow::Result<PathBuf> {
    let name = ModelName::parse(model)?;
    if let ModelName::Path(path) = name {
        return Ok(path);
    }
    hub::find(&name, &Cache::from_env()?)?.ok_or_else(|| {
        let reason = format!("`{model}` is not on this machine");
        Failure::new(reason, format!("`metallic pull {model}` fetches it")).into()
    })
}

/// Says how a model of the cache is repaired, where its file is what is wrong, and not that of an adapter.
pub(crate) fn repairable(model: &str, error: anyhow::Error) -> anyhow::Error {
    let is_cached = || ModelName::parse(model).is_ok_and(|name| !matches!(name, ModelName::Path(_)));
    let reason = fail::reason(&error);
    let names_it =
        || Cache::from_env().is_ok_and(|cache| reason.contains(&*cache.models().to_string_lossy()));
    if !fail::hint(&error).is_some_and(|hint| hints::is_of_file(&hint)) || !is_cached() || !names_it() {
        return error;
    }
    let hint = format!("`metallic pull {model}` checks the file and repairs it; else take another model");
    Failure::new(reason, hint).into()
}

/// A model that answers.
pub(crate) fn llm(
    model: &ModelOptions,
    answer: &AnswerOptions,
    template: Option<&Path>,
    ui: Ui,
) -> anyhow::Result<Llm> {
    llm_verified(model, answer, template, None, ui)
}

/// The same, with one operation of every `verify` steps computed again by the reference.
pub(crate) fn llm_verified(
    model: &ModelOptions,
    answer: &AnswerOptions,
    template: Option<&Path>,
    verify: Option<NonZeroUsize>,
    ui: Ui,
) -> anyhow::Result<Llm> {
    let speculation = answer.speculation.resolve(ui)?;
    let change = |options: LoadOptions| {
        options.verify(verify).speculation(speculation).template(template.map(Path::to_owned))
    };
    let llm = llm_with(model, answer.ctx, change, ui)?;
    answer.speculation.tell(&llm, ui);
    Ok(llm)
}

/// The same with options that are not for all commands.
pub(crate) fn llm_with(
    model: &ModelOptions,
    context: Option<NonZeroUsize>,
    change: impl FnOnce(LoadOptions) -> LoadOptions,
    ui: Ui,
) -> anyhow::Result<Llm> {
    let path = path(&model.model, ui)?;
    let context = context.map(usize::from);
    let options = change(
        LoadOptions::default()
            .device(model.device.device.clone())
            .open(model.device.open()?)
            .kv_type(model.device.kv_type)
            .context(context)
            .model(model.device.read())
            .adapters(model.lora.as_slice())
            .merge_adapters(model.merge_lora),
    );
    if plan_dump::is_wanted() {
        dump_plan(&path, &options)?;
    }
    let spinner = ui.spinner(&format!("loading {}", path.display()));
    let llm = Llm::load_with(&path, &options).map_err(|error| repairable(&model.model, error.into()))?;
    drop(spinner);
    tell(&options.open, ui);
    doubts(llm.tokenizer(), ui);
    let made_for = llm.model().config().context;
    if let Some(asked) = context.filter(|asked| *asked > made_for) {
        ui.note(&format!("note: the model was made for {made_for} tokens; --ctx {asked} is cut to that"));
    }
    Ok(llm)
}

/// Shows the plan of a model that is about to be loaded. The device is opened once more for it, with choices of its own.
pub(crate) fn dump_plan(path: &Path, options: &LoadOptions) -> anyhow::Result<()> {
    let model = Model::open_with(path, FAMILIES, &options.model)?;
    let open = OpenOptions::default().threads(options.open.threads).exact(options.open.exact);
    for (op, provider) in options.open.providers.asked() {
        open.providers.set(op.name(), provider.name())?;
    }
    let backend = options.device.open_with(&open)?;
    plan_dump::show(&model, backend.as_ref(), options.engine.kv_type)
}

/// Says what was guessed of a tokenizer.
pub(crate) fn doubts(tokenizer: &Tokenizer, ui: Ui) {
    for note in tokenizer.notes() {
        ui.note(&format!("note: {note}"));
    }
}

/// Says which kernels of the device could not be had, where others serve in their place, which wishes are idle, and what its
/// plans go by where that is not what is built in.
pub(crate) fn tell(open: &OpenOptions, ui: Ui) {
    let providers = &open.providers;
    for note in open.tuned.notes() {
        ui.note(&format!("note: {note}"));
    }
    if let TuningSource::File(path) = open.tuned.source() {
        ui.note(&format!("note: tuned as measured in {}", path.display()));
    }
    for note in providers.notes() {
        ui.note(&format!("note: {note}"));
    }
    for error in providers.passed_over() {
        ui.note(&format!("note: {error}; `--provider` goes before it"));
    }
    let quarantined = providers.quarantined();
    for Selection { op, provider, why, .. } in providers.stood_in() {
        if let Why::Fallback { from, error } = why
            && !quarantined.iter().any(|known| known.provider == from)
        {
            ui.note(&format!("note: {op}={from} cannot serve everything: {error}; `{provider}` does then"));
        }
    }
    for Quarantined { op, provider, error } in quarantined {
        ui.note(&format!("note: {op}={provider} is left out on this device: {error}"));
    }
}

/// A model on its device, without engine and tokenizer.
pub(crate) struct Loaded {
    pub(crate) path: String,
    pub(crate) model: Model,
    pub(crate) program: Box<dyn Program>,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) device: DeviceInfo,
    /// How the device was opened; what was chosen and what is in use can be read there.
    pub(crate) open: OpenOptions,
    /// Seconds from the file to the program.
    pub(crate) load_s: f64,
    /// What was told of it.
    load: telemetry::Load,
    kv_type: DType,
}

/// Loads a model for work on its program.
pub(crate) fn program(model: &ModelOptions, profile: bool, ui: Ui) -> anyhow::Result<Loaded> {
    program_on(model, profile, ui, |options| model.device.device.open_with(options))
}

/// How a model is read where its adapters are added to its matrices.
pub(crate) fn merged(model: &ModelOptions) -> metallic::model::ModelOptions {
    model.device.read().adapters(model.lora.as_slice()).merge_adapters(true)
}

/// The same on a device that is opened otherwise.
pub(crate) fn program_on(
    model: &ModelOptions,
    profile: bool,
    ui: Ui,
    open: impl FnOnce(&OpenOptions) -> Result<Box<dyn Backend>, BackendError>,
) -> anyhow::Result<Loaded> {
    let path = path(&model.model, ui)?;
    let loaded = {
        let _spinner = ui.spinner(&format!("loading {}", path.display()));
        telemetry::loading(&path, || load_on(model, &path, profile, open))?
    };
    tell(&loaded.open, ui);
    Ok(loaded)
}

fn load_on(
    model: &ModelOptions,
    path: &Path,
    profile: bool,
    open: impl FnOnce(&OpenOptions) -> Result<Box<dyn Backend>, BackendError>,
) -> anyhow::Result<Loaded> {
    let (name, device) = (&model.model, &model.device);
    let adapters = merged(model);
    let start = Instant::now();
    let model =
        Model::open_with(path, FAMILIES, &adapters).map_err(|error| repairable(name, error.into()))?;
    if let Source::Folder(_) = model.source() {
        // Not used here, but a folder that is broken should not seem whole.
        model.tokenizer()?;
    }
    let options = device.open()?.profile(profile);
    let backend = open(&options)?;
    let kv_type = device.kv_type;
    let (weights, available) = (model.weight_bytes(), metallic::device::available_memory());
    if let Some(available) = available.filter(|available| weights > *available) {
        let reason =
            format!("the weights of `{}` take {weights} bytes, {available} are available", path.display());
        return Err(Failure::new(reason, "take a smaller model or a stronger quantisation").into());
    }
    plan_dump::show(&model, backend.as_ref(), kv_type)?;
    let compiling = Instant::now();
    let program = model.compile(backend.as_ref(), CompileOptions::kv(kv_type))?;
    let (loading, compiled) = (start.elapsed(), compiling.elapsed());
    let load = telemetry::load_event(&model, backend.as_ref(), kv_type, [loading, compiled]);
    telemetry::tell_load(&load, &*program, available);
    for note in options.tuned.notes() {
        telemetry::warn("tuning", || note);
    }
    let load_s = loading.as_secs_f64();
    let (path, device) = (path.display().to_string(), backend.info().clone());
    Ok(Loaded { path, model, program, backend, device, open: options, load_s, load, kv_type })
}

/// Checks that a vocabulary of `vocab` tokens has these ids.
pub(crate) fn check_ids(tokens: &[u32], vocab: usize) -> anyhow::Result<()> {
    let Some(id) = tokens.iter().find(|id| **id as usize >= vocab) else { return Ok(()) };
    let reason = format!("token {id} is not in the vocabulary, which has {vocab} tokens");
    Err(Failure::new(reason, "`metallic tool tokenize` gives ids of this model").into())
}

impl Loaded {
    /// Tells again what is loaded, with what the device reaches at best.
    pub(crate) fn tell_peaks(&self, peaks: Option<&Peaks>) {
        let Some(peaks) = peaks else { return };
        let load = telemetry::Load { peak_bytes_per_second: Some(peaks.read), ..self.load.clone() };
        telemetry::tell_load(&load, &*self.program, metallic::device::available_memory());
    }

    /// Checks ids that the user gave, and that they and `more` tokens fit the model.
    pub(crate) fn check(&self, tokens: &[u32], more: usize) -> anyhow::Result<()> {
        let config = self.model.config();
        check_ids(tokens, config.vocab)?;
        let needed = tokens.len().saturating_add(more);
        if needed > config.context {
            let reason = format!("{needed} tokens are needed, the model's context holds {}", config.context);
            return Err(Failure::new(reason, "give fewer tokens, or generate fewer (`-n`)").into());
        }
        self.check_room(needed)
    }

    /// Checks that keys and values of so many tokens fit into the memory that is left.
    pub(crate) fn check_room(&self, tokens: usize) -> anyhow::Result<()> {
        let layout = self.model.states(self.kv_type)?;
        let needed =
            (layout.token_bytes() as u64).saturating_mul(tokens.next_multiple_of(BLOCK_TOKENS) as u64);
        match metallic::device::available_memory() {
            Some(available) if needed > available => {
                let reason =
                    format!("the cache of {tokens} tokens takes {needed} bytes, {available} are available");
                Err(Failure::new(reason, "give fewer tokens, or a smaller `--kv-type`").into())
            }
            _ => Ok(()),
        }
    }
}
