//! The Objective-C runtime, as far as objc2 asks for one: the flavour of GNUstep, whose messages are a lookup and a
//! call. All that is unsafe about talking to foreign code stands here.
#![allow(unsafe_code)]

mod args;
mod block;
mod class;
mod encode;
mod exit;
mod exports;
mod object;
mod pool;
mod sel;
mod symbols;
#[cfg(test)]
mod tests;

pub(crate) use args::{
    BlockArg, InBytes, InNumbers, InObjects, MtlRegion, MtlSize, NsRange, OutBytes, OutObject,
};
pub(crate) use block::{Block, alive as blocks_alive};
pub(crate) use class::{Class, ClassRef, Method, call_init, class, methods, none, raw_methods, returns};
pub(crate) use exit::at_exit;
pub(crate) use object::{Id, Payload, Strong, This, alive, give, lend};
pub(crate) use pool::{pop as pop_pool, push as push_pool};
pub(crate) use sel::Sel;
