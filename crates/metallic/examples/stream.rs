//! Two answers awaited at the same time by one thread. Any runtime will do; here it is a dozen lines.
//!
//! `cargo run --release -p metallic --example stream -- model.gguf --device cpu`

mod common;

use std::future::poll_fn;
use std::io::Write;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use metallic::generate::EngineError;
use metallic::{Event, Generation, Llm, LoadOptions, Options, Sampling};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let (device, rest) = common::arguments(args)?;
    let path = rest.first().ok_or("usage: stream MODEL [--device NAME]")?;
    let llm = Llm::load_with(path, &LoadOptions::default().device(device))?;
    let options = Options::default().max_tokens(24).sampling(Sampling::greedy());
    let prompts = ["Once upon a time", "The dog"];
    let answers = prompts.map(|prompt| llm.generate(prompt, options.clone()).map(text));
    let [first, second] = answers;
    for (prompt, text) in prompts.iter().zip(block_on(both(first?, second?))) {
        writeln!(out, "{prompt}{}", text?)?;
    }
    Ok(())
}

/// The text of an answer, piece by piece as it comes.
async fn text(mut answer: Generation) -> Result<String, EngineError> {
    let mut text = String::new();
    while let Some(event) = poll_fn(|context| Pin::new(&mut answer).poll_next(context)).await {
        match event? {
            Event::Token(token) => text.push_str(&token.text),
            Event::Finished(end) => text.push_str(&end.text),
            _ => {}
        }
    }
    Ok(text)
}

/// Awaits two futures at the same time.
async fn both<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> [T; 2] {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(move |context| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(context)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready([a, b]),
            pending => {
                (first, second) = pending;
                Poll::Pending
            }
        }
    })
    .await
}

/// A runtime for one task: the thread sleeps until the task is woken.
fn block_on<F: Future>(task: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut task = pin!(task);
    loop {
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
