//! Embeddings: the mean of a prompt's hidden states.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::{Error, Llm, Prompt};
use crate::generate::{EngineError, Event, Generation};

/// An embedding that is being computed: a future, and [`wait`](Self::wait) for programs without them. Dropping it cancels it.
#[derive(Debug)]
pub struct Embedding {
    generation: Generation,
    sum: Arc<Mutex<Sum>>,
    tokens: usize,
}

/// The sum of so many rows.
#[derive(Debug, Default)]
struct Sum {
    row: Vec<f32>,
    rows: usize,
}

impl Sum {
    fn add(&mut self, row: &[f32]) {
        self.row.resize(row.len(), 0.0);
        self.row.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        self.rows += 1;
    }

    /// The direction of the mean, which is that of the sum.
    fn direction(&mut self) -> Vec<f32> {
        let mut row = std::mem::take(&mut self.row);
        let length = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().filter(|_| length > 0.0).for_each(|x| *x /= length);
        row
    }
}

fn lock(sum: &Mutex<Sum>) -> MutexGuard<'_, Sum> {
    sum.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Embedding {
    /// How many tokens the prompt has.
    pub fn prompt_tokens(&self) -> usize {
        self.tokens
    }

    /// Waits for it.
    pub fn wait(mut self) -> Result<Vec<f32>, Error> {
        while let Some(event) = self.generation.next() {
            if let Some(embedding) = self.taken(event) {
                return embedding;
            }
        }
        Err(EngineError::Gone.into())
    }

    /// The embedding or why there is none, at the last event.
    fn taken(&self, event: Result<Event, EngineError>) -> Option<Result<Vec<f32>, Error>> {
        match event {
            Err(error) => Some(Err(error.into())),
            Ok(Event::Finished(_)) => {
                let mut sum = lock(&self.sum);
                // Fewer rows where the engine was dropped meanwhile.
                let is_whole = sum.rows == self.tokens;
                Some(is_whole.then(|| sum.direction()).ok_or(EngineError::Gone.into()))
            }
            Ok(_) => None,
        }
    }
}

impl Future for Embedding {
    type Output = Result<Vec<f32>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let event = ready!(Pin::new(&mut self.generation).poll_next(context));
            match event.map(|event| self.taken(event)) {
                None => return Poll::Ready(Err(EngineError::Gone.into())),
                Some(Some(embedding)) => return Poll::Ready(embedding),
                Some(None) => {}
            }
        }
    }
}

impl Llm {
    /// An embedding of a prompt: the mean of its hidden states, of length 1. Texts that mean alike point alike as far as
    /// the model was trained for it.
    pub fn embed<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Vec<f32>, Error> {
        self.embedding(prompt)?.wait()
    }

    /// [`embed`](Self::embed) for programs that do something else meanwhile, or want several at once.
    pub fn embedding<'p>(&self, prompt: impl Into<Prompt<'p>>) -> Result<Embedding, Error> {
        let prompt = self.request(prompt)?.prompt;
        let (tokens, sum) = (prompt.len(), Arc::new(Mutex::new(Sum::default())));
        let adding = Arc::clone(&sum);
        let generation = self.engine.submit_hidden(prompt, move |row| lock(&adding).add(row))?;
        Ok(Embedding { generation, sum, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_has_length_1_and_nothing_has_none() {
        let mut sum = Sum::default();
        sum.add(&[3.0, 0.0]);
        sum.add(&[0.0, 4.0]);
        assert_eq!((sum.rows, sum.direction()), (2, vec![0.6, 0.8]));
        sum.add(&[0.0, 0.0]);
        assert_eq!(sum.direction(), [0.0, 0.0]);
    }
}
