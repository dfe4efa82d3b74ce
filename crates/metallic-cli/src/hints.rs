//! The next step for each way in which the library can fail.

use std::error::Error;

use metallic::{
    core::BackendError,
    diff::{DiffError, SavedError},
    formats::FormatError,
    generate::EngineError,
    model::ModelError,
    quantize::QuantizeError,
    text::TextError,
};

const WEIGHTS: &str =
    "the file may be damaged or made for another program; `metallic inspect FILE` shows what is in it";
const DAMAGED: &str = "the file is damaged or incomplete: download it again";
const OTHER_MODEL: &str =
    "`metallic list --aliases` names models that run; `metallic inspect FILE` shows this one";
const MEMORY: &str =
    "take a smaller model or quantisation, a shorter `--ctx`, or `--kv-type q8_0`; or close other programs";
const SHORTEN: &str =
    "shorten the prompt or the answer (`-n`); `--ctx` sets the limit, up to what the model was made for";
const NOT_A_MODEL: &str = "a model is a GGUF file, or a folder with config.json and safetensors";
const TOKENIZER: &str =
    "the tokenizer's files are damaged or of an unknown kind: download the model again, or take another";

/// Whether a hint is about what stands in a file, which may have come to harm.
pub(crate) fn is_of_file(hint: &str) -> bool {
    [WEIGHTS, NOT_A_MODEL, TOKENIZER, DAMAGED].contains(&hint)
}

/// A hint for one error of a chain.
pub(crate) fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let of_all = error.downcast_ref().and_then(of_library);
    of_all
        .or_else(|| error.downcast_ref().and_then(of_model))
        .or_else(|| error.downcast_ref().map(of_format))
        .or_else(|| error.downcast_ref().and_then(of_quantize))
        .or_else(|| error.downcast_ref().and_then(of_text))
        .or_else(|| error.downcast_ref().and_then(of_engine))
        .or_else(|| error.downcast_ref().and_then(of_diff))
        .or_else(|| error.downcast_ref().map(of_saved))
        .or_else(|| error.downcast_ref().and_then(of_backend))
}

fn of_library(error: &metallic::Error) -> Option<&'static str> {
    use metallic::Error as E;
    match error {
        E::Model(error) => of_model(error),
        E::Text(error) => of_text(error),
        E::Engine(error) => of_engine(error),
        E::Backend(error) => of_backend(error),
        E::NoTokenizer { .. } => {
            Some("`metallic tool generate` takes token ids; a folder needs its tokenizer.json for text")
        }
        E::NoTemplate { .. } => Some("`metallic run --raw` continues plain text"),
        E::NoRoom { .. } => Some(MEMORY),
        E::DraftVocabulary { .. } => Some("take a smaller model of the same make, or `--speculate lookup`"),
        _ => None,
    }
}

fn of_diff(error: &DiffError) -> Option<&'static str> {
    match error {
        DiffError::Model(error) => of_model(error),
        DiffError::Backend(error) => of_backend(error),
        DiffError::Saved(error) => Some(of_saved(error)),
        DiffError::Models { .. } => {
            Some("give two files of one model; `metallic inspect FILE` shows what each is")
        }
        DiffError::Tokens { .. } => Some("give fewer tokens, or fewer `--steps`"),
        _ => None,
    }
}

fn of_saved(error: &SavedError) -> &'static str {
    match error {
        SavedError::Tokens { .. } => "leave out `--prompt` and `--tokens`: those that were saved are run",
        SavedError::Model { .. } => "give the model that was saved (`-m`)",
        SavedError::Exists { .. } => "give another folder, or remove this one",
        SavedError::Half { .. } => "`--full` saves 32 bits",
        _ => "`metallic diff --save FOLDER` makes such a folder anew",
    }
}

fn of_quantize(error: &QuantizeError) -> Option<&'static str> {
    match error {
        QuantizeError::Format(error) => Some(of_format(error)),
        QuantizeError::Model(error) => of_model(error),
        QuantizeError::NotFinite { .. } => {
            Some("the weights are damaged; `--type F16` or F32 keeps them as they are")
        }
        QuantizeError::Importance { .. } => {
            Some("`metallic imatrix MODEL TEXT -o FILE` makes one of the model that is quantised")
        }
        QuantizeError::NotGguf { .. } => Some("`metallic quantize FOLDER FILE.gguf --type F16` makes one"),
        QuantizeError::TextTooShort { .. } => Some("give a longer text, or a smaller `--ctx`"),
        _ => None,
    }
}

fn of_model(error: &ModelError) -> Option<&'static str> {
    Some(match error {
        ModelError::NotAModel { reason, .. } if reason.contains("config.json") => {
            "a model folder holds config.json, tokenizer.json and *.safetensors; or give a GGUF file"
        }
        ModelError::NotAModel { reason, .. } if reason.contains("its folder") => {
            "give the folder that holds config.json and the safetensors"
        }
        ModelError::NotAModel { .. } => "check the path; a model is a GGUF file or a Hugging Face folder",
        ModelError::Format(error) => of_format(error),
        ModelError::Read { .. } => "check that the file is there and may be read",
        ModelError::Json { .. } => DAMAGED,
        ModelError::Architecture { .. } => OTHER_MODEL,
        ModelError::Config { .. }
        | ModelError::Missing { .. }
        | ModelError::Mismatch { .. }
        | ModelError::Unread { .. }
        | ModelError::Graph(_) => WEIGHTS,
        ModelError::NotAnAdapter { .. } => "an adapter is a folder that PEFT wrote, or a GGUF file of one",
        ModelError::AdapterBase { .. }
        | ModelError::AdapterTarget { .. }
        | ModelError::AdapterShape { .. } => "take the model that the adapter was trained for",
        ModelError::KvType { .. } => "take another `--kv-type`",
        ModelError::Backend(error) => return of_backend(error),
        ModelError::Text { error, .. } => return of_text(error),
        _ => return None,
    })
}

fn of_format(error: &FormatError) -> &'static str {
    match error {
        FormatError::Io { action: "write", .. } => {
            "check the folder, its rights and the space left on the disk"
        }
        FormatError::Io { .. } => "check that the file is there and may be read",
        FormatError::NotThisFormat { .. } => NOT_A_MODEL,
        FormatError::DType { .. } => "take another quantisation of the model, such as Q4_K_M or Q8_0",
        FormatError::Header { what, .. } if what == "the model file" => {
            "a model folder holds config.json and *.safetensors; or give a GGUF file"
        }
        FormatError::MissingKey { .. } | FormatError::MissingTensor { .. } => WEIGHTS,
        _ => DAMAGED,
    }
}

fn of_text(error: &TextError) -> Option<&'static str> {
    Some(match error {
        TextError::Io { .. } => {
            "check that the file is there and may be read; a folder needs its tokenizer.json"
        }
        TextError::Metadata(error) => match error {
            FormatError::MissingKey { .. } => {
                "the file has no complete tokenizer; take another file of the model"
            }
            other => of_format(other),
        },
        TextError::Json { .. } | TextError::Vocabulary { .. } | TextError::Pattern { .. } => TOKENIZER,
        TextError::Unsupported { .. } => OTHER_MODEL,
        TextError::TooLong { .. } => "give the text in pieces",
        TextError::TemplateRaised { .. } => "change the messages as the template asks",
        TextError::TemplateSyntax { .. }
        | TextError::TemplateFailed { .. }
        | TextError::TemplateEndless { .. } => "`metallic run --raw` works without the template",
        _ => return None,
    })
}

fn of_engine(error: &EngineError) -> Option<&'static str> {
    Some(match error {
        EngineError::EmptyPrompt => "give some text, or at least one token",
        EngineError::PromptTooLong { .. } => SHORTEN,
        EngineError::TokenOutOfRange { .. } => "`metallic tool tokenize` gives ids of this model",
        EngineError::Parameter { .. } => "`--help` lists the options and their ranges",
        EngineError::KvBudget { .. } => MEMORY,
        EngineError::Backend(error) => return of_backend(error),
        EngineError::NoCandidate { .. } => "the model computes no numbers; its weights may be damaged",
        EngineError::TextTooShort { .. } => "give a longer text, or a smaller `--ctx`",
        EngineError::Thread { .. } => "the system has no threads or memory left: close other programs",
        EngineError::Panicked { .. } => "please report this line together with the command you ran",
        _ => return None,
    })
}

fn of_backend(error: &BackendError) -> Option<&'static str> {
    Some(match error {
        BackendError::OutOfMemory { .. } => MEMORY,
        BackendError::Unsupported { .. } => "try `--device cpu`, or another quantisation of the model",
        BackendError::Unavailable { .. } => {
            "`metallic devices` lists what there is; `--device cpu` always works"
        }
        BackendError::Setting { setting, .. } if setting.ends_with(" threads") => "take fewer threads (`-t`)",
        BackendError::Setting { setting, .. } if setting.starts_with("tuning ") => {
            "`metallic tune --reset` removes it, METALLIC_TUNING=off goes without; `metallic tune` measures anew"
        }
        BackendError::Setting { setting, .. } if setting.starts_with("METALLIC_TUNING") => {
            "give a file that `metallic tune` has made on this device, or `off`, or unset it"
        }
        BackendError::Setting { device: "cpu" | "reference", .. } => {
            "leave out `--provider`, or run on a GPU: `--device soft` or `--device metal`"
        }
        BackendError::Setting { .. } => "correct or unset it; `--provider` goes before the environment",
        BackendError::Compile { .. } => {
            "try another `--provider`, or `--device cpu`; please report the line above"
        }
        BackendError::Timeout { .. } => "try a shorter prompt, or `--device cpu`",
        BackendError::Step(_) => "please report this line together with the command you ran",
        BackendError::Bytes(_) => "leave the file alone while it is in use, or fetch it again",
        BackendError::Failed { .. } => "try fewer threads (`-t`)",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_found_below_the_errors_that_pass_it_on() {
        let cut = || FormatError::Truncated { file: "a".into(), what: "b".into(), needed: 2, left: 1 };
        let text = TextError::Metadata(cut());
        for error in [
            &cut() as &(dyn Error + 'static),
            &ModelError::Format(cut()),
            &metallic::Error::Model(ModelError::Format(cut())),
            &ModelError::Text { file: "a".into(), error: text.into() },
        ] {
            assert_eq!(of(error), Some(DAMAGED), "{error}");
        }
        assert_eq!(of(&std::io::Error::other("x")), None);
    }
}
