//! The engine over HTTP, in the shape of the OpenAI API.
//!
//! [`router`] gives the routes for a program that has a server of its own; [`serve`] listens, with limits on time and
//! connections and an orderly end. Whatever the API does not support is refused by name: no field of a request is ever ignored.
//!
//! ```no_run
//! use metallic::Llm;
//! use metallic_server::{Models, Server, ServerOptions, serve};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let models = Models::new().add("smollm2", Llm::load("SmolLM2-135M-Instruct.Q4_1.gguf")?)?;
//! let server = Server::new(models, ServerOptions::default().api_keys(["secret".to_owned()]))?;
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! serve(listener, server, async { tokio::time::sleep(std::time::Duration::from_secs(3600)).await }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Every request goes the same way: `http` checks who asks and reads the body, `api` reads the fields of an endpoint into a
//! task, `task` hands it to the engine and gives the answer as deltas that know no protocol, and `api` writes those in the shape
//! that was asked for.
#![forbid(unsafe_code)]

mod api;
mod error;
mod fields;
mod http;
mod log;
mod metrics;
mod models;
mod options;
pub mod page;
mod serve;
mod server;
mod task;

pub use error::ServerError;
pub use log::{LogSink, RequestLog};
pub use models::{ModelSpec, Models};
pub use options::{Limits, ServerOptions};
pub use serve::serve;
pub use server::{Server, router};
