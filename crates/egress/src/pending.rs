//! Questions to the process that started this one, and its answers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Questions without an answer, by their numbers.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    waiting: Mutex<HashMap<u64, oneshot::Sender<T>>>,
    last: AtomicU64,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Pending { waiting: Mutex::default(), last: AtomicU64::new(0) }
    }
}

/// Number of a question that waits. Dropping it ends the wait.
struct Waiting<'a, T>(&'a Pending<T>, u64);

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.0.waiting().remove(&self.1);
    }
}

impl<T> Pending<T> {
    /// Sends a question with its number, and waits for the answer. `None` if it does not come within the limit.
    pub(crate) async fn ask(&self, limit: Duration, send: impl FnOnce(u64)) -> Option<T> {
        let (sender, receiver) = oneshot::channel();
        let waiting = Waiting(self, self.last.fetch_add(1, Ordering::Relaxed));
        self.waiting().insert(waiting.1, sender);
        send(waiting.1);
        timeout(limit, receiver).await.ok()?.ok()
    }

    /// Takes the answer to a question. One that comes too late is dropped.
    pub(crate) fn answer(&self, number: u64, answer: T) {
        if let Some(waiting) = self.waiting().remove(&number) {
            let _ = waiting.send(answer);
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<T>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn answers_reach_their_questions() {
        let pending = Arc::new(Pending::default());
        let (numbers, mut asked) = tokio::sync::mpsc::unbounded_channel();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (pending, numbers) = (pending.clone(), numbers.clone());
                tokio::spawn(async move {
                    let mut own = 0;
                    let answer = pending.ask(LONG, |number| {
                        own = number;
                        numbers.send(number).unwrap();
                    });
                    let answer = answer.await;
                    (own, answer)
                })
            })
            .collect();
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(asked.recv().await.unwrap());
        }
        // In another order, and one twice.
        for number in all.iter().rev().chain(&all[..1]) {
            pending.answer(*number, number + 100);
        }
        for task in tasks {
            let (number, answer) = task.await.unwrap();
            assert_eq!(answer, Some(number + 100));
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_question_without_an_answer() {
        let pending: Pending<()> = Pending::default();
        assert_eq!(pending.ask(Duration::ZERO, |_| ()).await, None);
        assert!(pending.waiting().is_empty());
        // Its task ends.
        assert!(timeout(Duration::ZERO, pending.ask(LONG, |_| ())).await.is_err());
        assert!(pending.waiting().is_empty());
        pending.answer(0, ());
    }
}
