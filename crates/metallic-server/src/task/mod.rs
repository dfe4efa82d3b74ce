//! What is asked of a model and what it answers, in no protocol's shape: every endpoint that generates reads its fields into a
//! [`Task`] and writes what it wants from the [`Delta`]s that [`Choices`] gives.

mod answer;
mod choices;
mod collect;
mod delta;
mod form;
mod spelled;

pub(crate) use choices::Choices;
pub(crate) use collect::{Call, Collected};
pub(crate) use delta::{Delta, Finish, Reason, TokenDelta, TokenText, Usage};

use std::sync::Arc;

use metallic::constrain::Format;
use metallic::text::{ReasoningSplitter, ToolChoice};
use metallic::{Chat, Llm, Options, Request};
use serde_json::Value;

use crate::error::ApiError;
use crate::http::{Journey, aside};
use crate::models::Served;
use crate::server::Server;
use answer::{Answer, Asked};
use form::Form;

/// A prompt in one of the forms that APIs take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Input {
    Chat(Chat),
    Text(String),
    Tokens(Vec<u32>),
}

/// An answer, or several, to one prompt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Task {
    pub(crate) input: Input,
    /// The field of the request that has the prompt, for errors.
    pub(crate) pointer: &'static str,
    /// In the form that templates take, which is that of the OpenAI API.
    pub(crate) tools: Vec<Value>,
    pub(crate) tool_choice: ToolChoice,
    /// Whether a model may call several tools at once.
    pub(crate) parallel_calls: bool,
    /// What the answer must be like, and the field that says so.
    pub(crate) format: Option<(Format, String)>,
    pub(crate) options: Options,
    /// How many answers.
    pub(crate) n: usize,
}

impl Task {
    /// A task with one answer and nothing special.
    pub(crate) fn new(input: Input, pointer: &'static str, options: Options) -> Self {
        Self {
            input,
            pointer,
            tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            parallel_calls: true,
            format: None,
            options,
            n: 1,
        }
    }

    /// Hands the task to the engine. Templates and tokenizers take their time, so that happens beside the runtime.
    pub(crate) async fn start(
        self,
        server: &Server,
        model: &Arc<Served>,
        journey: &Journey,
    ) -> Result<Choices, ApiError> {
        journey.log().model = Some(model.name.clone());
        let limit = server.options().limits.request_time;
        let (served, started) = (Arc::clone(model), journey.started);
        let mut task = self;
        task.take_adapter(model)?;
        // A limit that no clock can show is none.
        task.options.deadline = started.checked_add(limit);
        let asked = aside(journey, move || task.submit(&served)).await?;
        let prompt_tokens = asked.first().map_or(0, |asked| asked.prompt_tokens);
        let follow = |asked| Answer::new(asked, server.clone(), Arc::clone(model), started);
        let choices = Choices::new(asked.into_iter().map(follow).collect(), server, journey.clone(), limit);
        Ok(choices.with_prompt_tokens(prompt_tokens))
    }

    /// The adapter that the name of a model asks for.
    fn take_adapter(&mut self, model: &Served) -> Result<(), ApiError> {
        let Some(share) = &model.adapter else { return Ok(()) };
        if self.options.adapters.is_some() {
            let message = "`/adapters` is given, and the name of the model asks for an adapter already";
            return Err(ApiError::invalid("/adapters", message));
        }
        self.options.adapters = Some(vec![share.clone()]);
        Ok(())
    }

    /// Whether the model is told of tools.
    fn may_call(&self) -> bool {
        !self.tools.is_empty() && self.tool_choice != ToolChoice::None
    }

    fn submit(self, model: &Served) -> Result<Vec<Asked>, ApiError> {
        let (pointer, llm) = (self.pointer, &model.llm);
        let told = |error: &metallic::Error| ApiError::of_library(error, pointer);
        let Form { calls, held } = Form::of(&self, llm)?;
        let first = self.request(llm, held.is_some()).map_err(|error| told(&error))?;
        let mut all = Vec::with_capacity(self.n);
        for index in 0..self.n {
            let mut options = self.options.clone();
            // Choices of one seed are others of one another, and the same the next time.
            options.sampling.seed = options.sampling.seed.map(|seed| seed.wrapping_add(index as u64));
            let mut request =
                Request::new(first.prompt.clone()).reasoning(first.reasoning.clone()).options(options);
            if let Some((format, at)) = &held {
                let constrainer = llm.constrainer().map_err(|error| told(&error))?;
                let made = constrainer.constraint(format);
                request = request.constraint(made.map_err(|error| ApiError::of_format(&error, at))?);
            }
            all.push(Asked {
                prompt_tokens: first.prompt.len(),
                generation: llm.submit(request).map_err(|error| told(&error))?,
                format: held.as_ref().map(|(_, at)| at.clone()).unwrap_or_default(),
                calls: calls.as_ref().map(|calls| calls.parser(&self.tools)),
                parallel_calls: self.parallel_calls,
                only_calls: held.is_some() && self.format.is_none(),
            });
        }
        Ok(all)
    }

    /// How many tokens its prompt has.
    pub(crate) fn count(&self, model: &Served) -> Result<usize, ApiError> {
        let request = self.request(&model.llm, false);
        Ok(request.map_err(|error| ApiError::of_library(&error, self.pointer))?.prompt.len())
    }

    /// The prompt's tokens, and how thoughts are told from the answer.
    fn request(&self, llm: &Llm, is_held: bool) -> Result<Request, metallic::Error> {
        match &self.input {
            Input::Text(text) => llm.request(text.as_str()),
            Input::Tokens(tokens) => llm.request(tokens.as_slice()),
            Input::Chat(chat) => {
                let tools = if self.may_call() { told(&self.tools) } else { Vec::new() };
                let request = llm.chat_request(chat.clone().tools(tools).split_reasoning(true))?;
                if is_held { without_thoughts(llm, request, self.may_call()) } else { Ok(request) }
            }
        }
    }
}

/// Tools as the model is told of them: how strictly calls are held to their schemas is nothing it could do anything about.
pub(crate) fn told(tools: &[Value]) -> Vec<Value> {
    let mut tools = tools.to_vec();
    for function in tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut()) {
        function.shift_remove("strict");
    }
    tools
}

/// An answer that has a form is no place for thoughts: where the template has begun some, they end at once.
fn without_thoughts(llm: &Llm, mut request: Request, has_tools: bool) -> Result<Request, metallic::Error> {
    let Some(mark) = request.reasoning.as_ref().and_then(ReasoningSplitter::closing) else {
        return Ok(request);
    };
    let end = format!("{mark}\n\n");
    request.prompt.extend(llm.tokenizer().encode(&end, false, true)?);
    request.reasoning = llm.reasoning().map(|format| format.splitter(&end).keep_calls(has_tools));
    Ok(request)
}
