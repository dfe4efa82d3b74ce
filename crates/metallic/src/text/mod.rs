//! Text in and out of models: tokenizers, streaming decoders, stop strings and chat templates.
//!
//! A [`Tokenizer`] comes from the metadata of a GGUF file or from a Hugging Face folder. [`StreamDecoder`] turns the
//! tokens of a running generation into text, [`StopMatcher`] watches that text, and [`ChatTemplate`] writes a
//! conversation the way a model was trained to read it. [`ToolFormat`] and [`ReasoningFormat`] take answers apart.

mod added;
mod bounds;
mod bpe;
mod byte_level;
mod charsmap;
mod digits;
mod error;
mod gguf;
mod hf;
mod hf_pipeline;
mod marks;
mod merge;
mod pipeline;
mod pre;
mod reasoning;
mod split;
mod spm;
mod stop;
mod stream;
mod template;
mod tokenizer;
mod tools;
mod unigram;
mod vocab;

pub use error::TextError;
pub use hf::HfFiles;
pub use marks::MarkGuard;
pub(crate) use pre::{GPT2_PATTERN, name_of as pre_tokenizer_name};
pub use reasoning::{Piece, ReasoningFormat, ReasoningSplitter};
pub use stop::StopMatcher;
pub use stream::StreamDecoder;
pub use template::{ChatTemplate, Message, TemplateSources};
pub use tokenizer::Tokenizer;
pub(crate) use tools::render as render_with_tools;
pub use tools::{
    ToolAnswer, ToolCall, ToolChoice, ToolFormat, ToolParser, ToolPiece, system_prompt as tool_system_prompt,
};
