//! `MPSCommandBuffer`, which may commit the command buffer it was made of and go on with another.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::foundation::NS_OBJECT;
use crate::lock;
use crate::metal::commit_and_continue;
use crate::objc::{Id, Method, Strong, class, methods, raw_methods};
use crate::problem::{Rule, refuse};

class!(pub(crate) static COMMAND_BUFFER = c"MPSCommandBuffer", &NS_OBJECT, all, makers);

/// What an `MPSCommandBuffer` holds: the command buffer that is not committed yet.
pub(crate) struct MpsCommandBuffer {
    root: Mutex<Strong>,
}

static COMMITS: AtomicBool = AtomicBool::new(false);

/// Says whether graphs commit the command buffer they are encoded into and go on with another, which the headers let them do.
pub fn set_graph_commits(commits: bool) {
    COMMITS.store(commits, Ordering::Relaxed);
}

impl MpsCommandBuffer {
    pub(crate) fn root(&self) -> Id {
        lock(&self.root).id()
    }

    /// What a graph may do between two of its kernels.
    pub(crate) fn may_commit(&self) {
        if COMMITS.load(Ordering::Relaxed) {
            self.commit_and_continue();
        }
    }

    fn commit_and_continue(&self) {
        let root = self.root();
        let Some(next) = commit_and_continue(root) else {
            refuse(Rule::CommandBufferState, "no command buffer to go on with".to_owned());
            return;
        };
        let old = std::mem::replace(&mut *lock(&self.root), next);
        drop(old);
    }
}

fn makers() -> Vec<Method> {
    raw_methods! {
        c"commandBufferWithCommandBuffer:"(_this, buffer: Id) -> Id {
            let Some(root) = Strong::retained(buffer) else { return Id::NULL };
            Strong::new(&COMMAND_BUFFER, MpsCommandBuffer { root: Mutex::new(root) }).lend()
        }
    }
}

fn all() -> Vec<Method> {
    methods! { MpsCommandBuffer;
        c"commandBuffer"(this) -> Id { lock(&this.root).clone().lend() }
        c"rootCommandBuffer"(this) -> Id { lock(&this.root).clone().lend() }
        c"commitAndContinue"(this) { this.commit_and_continue(); }
    }
}
