//! Busy time, CPU time and passed requests of a model on the server's metrics page.
//!
//! Triton's own counters add the time of a batch once for each of its requests, so they cannot say
//! how long the instances were busy. They do not contain CPU time at all: an instance that waits
//! for a core looks as busy as one that computes. Its gauge of pending requests does not contain
//! those that a new instance passed on to the others (see [`crate::start`]).

use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::OnceLock;

use crate::ffi::*;
use crate::request::{c_string, checked};

/// Name, kind and description of each family: those of [`Work`]'s fields, then the gauge.
const FAMILIES: [(&CStr, i32, &CStr); 3] = [
    (
        c"tritonpipe_step_busy_us",
        COUNTER,
        c"Time in which instances executed batches, in microseconds",
    ),
    (c"tritonpipe_step_cpu_us", COUNTER, c"CPU time of the instances, in microseconds"),
    (
        c"tritonpipe_step_passed_requests",
        GAUGE,
        c"Requests that a new instance passed on to the others and that wait for them",
    ),
];
/// Index of the gauge.
const PASSED: usize = 2;

/// An object of Triton that its API locks.
struct Shared(*mut Handle);

// SAFETY: Triton's functions for metrics may be called by several threads at once.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Time that an instance spent, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Work {
    busy: u64,
    cpu: u64,
}

impl Work {
    /// Returns the clocks of this thread.
    pub fn now() -> Self {
        Self { busy: clock(libc::CLOCK_MONOTONIC), cpu: clock(libc::CLOCK_THREAD_CPUTIME_ID) }
    }
}

/// Counters and gauge of one model; empty if the server has no metrics.
#[derive(Default)]
pub struct Counters(Vec<Shared>);

impl Counters {
    /// Creates those of a model.
    ///
    /// # Safety
    /// The library is loaded by Triton.
    pub unsafe fn new(model: &CStr, version: u64) -> Result<Self, String> {
        let version = c_string(&version.to_string());
        let mut counters = Self::default();
        // SAFETY: the names live until the parameters are deleted, and Triton copies the labels.
        unsafe {
            let labels = [
                TRITONSERVER_ParameterNew(c"model".as_ptr(), STRING, model.as_ptr().cast()),
                TRITONSERVER_ParameterNew(c"version".as_ptr(), STRING, version.as_ptr().cast()),
            ];
            let made = families().iter().try_for_each(|family| {
                let (mut metric, count) = (null_mut(), labels.len() as u64);
                let call = TRITONSERVER_MetricNew(&mut metric, family.0, labels.as_ptr(), count);
                checked(call).map(|()| counters.0.push(Shared(metric)))
            });
            labels.into_iter().for_each(|label| TRITONSERVER_ParameterDelete(label));
            made.map(|()| counters)
        }
    }

    /// Adds the work of this thread since `start`.
    pub fn add(&self, start: Work) {
        let end = Work::now();
        let spent = [end.busy.saturating_sub(start.busy), end.cpu.saturating_sub(start.cpu)];
        for (index, nanoseconds) in spent.into_iter().enumerate() {
            self.increment(index, nanoseconds as f64 / 1000.0);
        }
    }

    /// Adds requests that are about to be passed on.
    pub fn passed(&self, requests: usize) {
        self.increment(PASSED, requests as f64);
    }

    /// Removes passed requests that are about to be executed.
    pub fn executed(&self, requests: usize) {
        self.increment(PASSED, -(requests as f64));
    }

    fn increment(&self, index: usize, value: f64) {
        if let Some(metric) = self.0.get(index) {
            // SAFETY: the metric lives as long as the counters. An error changes nothing.
            let _ = unsafe { checked(TRITONSERVER_MetricIncrement(metric.0, value)) };
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        for metric in &self.0 {
            // SAFETY: the metric was created by `new` and is used no more.
            let _ = unsafe { checked(TRITONSERVER_MetricDelete(metric.0)) };
        }
    }
}

/// Returns the families of this library, created once; none if the server has no metrics.
///
/// They are never deleted: the server would then remove counters that another copy of this library
/// still uses.
unsafe fn families() -> &'static [Shared] {
    static CREATED: OnceLock<Vec<Shared>> = OnceLock::new();
    CREATED.get_or_init(|| {
        let mut created = Vec::new();
        for (name, kind, description) in FAMILIES {
            let mut family = null_mut();
            // SAFETY: the pointers are valid for the call; Triton copies the texts.
            let made = unsafe {
                checked(TRITONSERVER_MetricFamilyNew(
                    &mut family,
                    kind,
                    name.as_ptr(),
                    description.as_ptr(),
                ))
            };
            match made {
                Ok(()) => created.push(Shared(family)),
                Err(_) => return Vec::new(),
            }
        }
        created
    })
}

/// Returns a clock in nanoseconds.
pub fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
