//! Lets a new instance start while requests wait.
//!
//! Triton initializes an instance on the thread that also executes its batches, and that thread
//! takes a batch of the model whenever one waits (`DequeuePayload` in Triton's rate_limiter.cc).
//! While more requests arrive than the instances can process, one always waits: the new instance
//! executes batches, but the request that loads the model does not return, and no further instance
//! can be added. For a moment, a new instance therefore passes its batches on to the others, so that
//! its thread finds nothing that waits. Meanwhile, a helper thread executes passed batches in its place:
//! Triton has nothing left for the instance, and would leave it idle until the next request.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after its creation an instance passes batches on. Triton initializes it at once; the
/// rest is for servers whose threads wait for a core.
const NEW: Duration = Duration::from_secs(10);
/// Time from one execution to the next from which on no batch has waited. Without one that waits,
/// Triton needs the time to form one, or to initialize the instance.
const IDLE: Duration = Duration::from_micros(500);
/// How long batches are passed on: Triton needs two moments without a batch that waits, and other
/// threads have to run in between.
const PASSING: Duration = Duration::from_millis(50);
/// Time from one such period to the next, so that the instance mostly executes.
const PERIOD: Duration = Duration::from_millis(500);

/// Says when an instance passes batches on. Pure; the clock is passed in.
#[derive(Debug)]
pub struct Start {
    created: Instant,
    passing: Option<Instant>,
    executed: Option<Instant>,
}

impl Start {
    /// Returns that of an instance created now.
    pub fn new(now: Instant) -> Self {
        Self { created: now, passing: None, executed: None }
    }

    /// Returns whether a batch that Triton gives the instance now is to be passed on.
    ///
    /// The first batches are, and later those of a period that begins with one that waited.
    pub fn passes(&mut self, now: Instant) -> bool {
        if now.duration_since(self.created) >= NEW {
            return false;
        }
        let since = self.passing.map(|begin| now.duration_since(begin));
        if since.is_some_and(|since| since < PASSING) {
            return true;
        }
        let waited = self.executed.is_some_and(|end| now.duration_since(end) < IDLE);
        let begins = since.is_none_or(|since| since >= PERIOD && waited);
        if begins {
            self.passing = Some(now);
        }
        begins
    }

    /// Records the end of an execution.
    pub fn executed(&mut self, now: Instant) {
        self.executed = Some(now);
    }
}

/// Who executes batches for an instance. Both are read and written only by [`Passed`].
#[derive(Debug, Default)]
pub struct Executors {
    own: AtomicBool,
    helper: AtomicBool,
}

impl Executors {
    /// Records that no helper thread could be started.
    pub fn helper_failed(&self) {
        self.helper.store(false, Ordering::Relaxed);
    }
}

/// What became of a batch that an instance wants to pass on.
#[derive(Debug, PartialEq, Eq)]
pub enum Attempt<T> {
    /// No other instance executes, so the batch is returned.
    Kept(T),
    /// It was passed on.
    Passed,
    /// The same, and the instance has no helper thread: one is to be started, which has to call
    /// [`Passed::next_of_helper`] until that returns `None`.
    PassedWithoutHelper,
}

/// Batches of one model that were passed on, oldest first.
#[derive(Debug)]
pub struct Passed<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    batches: VecDeque<T>,
    /// Instances that execute. Helper threads do not count: if one fails, no batch is lost.
    executing: usize,
}

impl<T> Default for Passed<T> {
    fn default() -> Self {
        Self(Mutex::new(State { batches: VecDeque::new(), executing: 0 }))
    }
}

impl<T> Passed<T> {
    /// Passes a batch on to the instances that execute, if one does. Calls `count` before that.
    pub fn pass(&self, batch: T, executors: &Executors, count: impl FnOnce(&T)) -> Attempt<T> {
        let mut state = self.lock();
        if state.executing == 0 {
            return Attempt::Kept(batch);
        }
        count(&batch);
        state.batches.push_back(batch);
        match executors.helper.swap(true, Ordering::Relaxed) {
            true => Attempt::Passed,
            false => Attempt::PassedWithoutHelper,
        }
    }

    /// Begins to execute. [`Passed::next`] has to be called until it returns `None`.
    pub fn begin(&self, executors: &Executors) {
        let mut state = self.lock();
        state.executing += 1;
        executors.own.store(true, Ordering::Relaxed);
    }

    /// Returns the next batch to execute; without one, the instance executes no longer.
    pub fn next(&self, executors: &Executors) -> Option<T> {
        let mut state = self.lock();
        let next = state.batches.pop_front();
        if next.is_none() {
            state.executing -= 1;
            executors.own.store(false, Ordering::Relaxed);
        }
        next
    }

    /// Returns the next batch for the helper thread of an instance; none if the instance executes.
    pub fn next_of_helper(&self, executors: &Executors) -> Option<T> {
        let mut state = self.lock();
        let own = executors.own.load(Ordering::Relaxed);
        let next = if own { None } else { state.batches.pop_front() };
        if next.is_none() {
            executors.helper.store(false, Ordering::Relaxed);
        }
        next
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const TICK: Duration = Duration::from_millis(5);
    const AT_ONCE: Duration = Duration::from_micros(20);

    fn ignore<T>(_: &T) {}

    #[test]
    fn batches_are_passed_on_for_a_moment() {
        let begin = Instant::now();
        let mut start = Start::new(begin);
        let first = begin + TICK;
        assert!(start.passes(first));
        assert!(start.passes(first + TICK));
        assert!(!start.passes(first + PASSING));
        start.executed(first + PASSING + TICK);
        assert!(!start.passes(first + PASSING + TICK + AT_ONCE), "it executes in between");
        start.executed(first + PERIOD);
        assert!(start.passes(first + PERIOD + AT_ONCE), "a batch waited");
        assert!(start.passes(first + PERIOD + TICK), "also those that come later");
        assert!(!start.passes(first + PERIOD + AT_ONCE + PASSING));
    }

    #[test]
    fn later_nothing_is_passed_on_if_no_batch_waits() {
        let begin = Instant::now();
        let mut start = Start::new(begin);
        assert!(start.passes(begin));
        for at in (50..9_000).step_by(5).map(|at| begin + Duration::from_millis(at)) {
            start.executed(at - IDLE);
            assert!(!start.passes(at));
        }
    }

    #[test]
    fn an_old_instance_executes_everything() {
        let begin = Instant::now();
        let mut start = Start::new(begin);
        start.executed(begin + NEW);
        assert!(!start.passes(begin + NEW + AT_ONCE));
    }

    #[test]
    fn a_batch_is_passed_on_to_an_instance_that_executes() {
        let (passed, new, old) = (Passed::default(), Executors::default(), Executors::default());
        assert_eq!(passed.pass(1, &new, ignore), Attempt::Kept(1), "nobody would execute it");
        passed.begin(&old);
        assert_eq!(passed.pass(2, &new, ignore), Attempt::PassedWithoutHelper);
        assert_eq!(passed.pass(3, &new, ignore), Attempt::Passed);
        assert_eq!(passed.next(&old), Some(2));
        assert_eq!(passed.next(&old), Some(3));
        assert_eq!(passed.next(&old), None);
        assert_eq!(passed.pass(4, &new, ignore), Attempt::Kept(4), "it executes no longer");
    }

    #[test]
    fn a_helper_executes_until_the_instance_does() {
        let (passed, new, old) = (Passed::default(), Executors::default(), Executors::default());
        passed.begin(&old);
        assert_eq!(passed.pass(1, &new, ignore), Attempt::PassedWithoutHelper);
        assert_eq!(passed.next_of_helper(&new), Some(1));
        assert_eq!(passed.next_of_helper(&new), None);
        assert_eq!(passed.pass(2, &new, ignore), Attempt::PassedWithoutHelper, "it had ended");
        assert_eq!(passed.pass(3, &new, ignore), Attempt::Passed);
        passed.begin(&new);
        assert_eq!(passed.next_of_helper(&new), None, "the instance executes itself");
        assert_eq!(passed.next(&new), Some(2));
        assert_eq!(passed.next(&old), Some(3));
    }

    #[test]
    fn no_batch_is_lost_between_threads() {
        let (passed, executed) = (Passed::default(), AtomicUsize::new(0));
        let (threads, batches) = (4, 20_000);
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (passed, executed) = (&passed, &executed);
                scope.spawn(move || {
                    let executors = Executors::default();
                    for batch in (0..batches).filter(|batch| batch % threads == thread) {
                        let kept = if batch % 3 == 0 {
                            Attempt::Kept(batch)
                        } else {
                            passed.pass(batch, &executors, ignore)
                        };
                        let mut next = match kept {
                            Attempt::Kept(batch) => Some(batch),
                            Attempt::Passed => continue,
                            Attempt::PassedWithoutHelper => {
                                while passed.next_of_helper(&executors).is_some() {
                                    executed.fetch_add(1, Ordering::Relaxed);
                                }
                                continue;
                            }
                        };
                        passed.begin(&executors);
                        while next.is_some() {
                            executed.fetch_add(1, Ordering::Relaxed);
                            next = passed.next(&executors);
                        }
                    }
                });
            }
        });
        assert_eq!(executed.into_inner(), batches);
    }
}
