//! What bounds steps of many small kernels: how long one takes at best that follows another.

use metallic_gpu::{Providers, Relay};

use crate::device::Device;

/// Bytes that a core asks for at a time.
const PIECE: usize = 16 << 10;

/// A kernel after another one, where every core copies parts of what threadgroup memory holds, of what all read and of its own, and its
/// part of each matrix of a layer of Qwen2.5-7B in Q4_0 and in Q8_0.
pub(crate) fn relays(device: &Device, wanted: &dyn Fn(&str) -> bool) {
    let backend = device.backend(&Providers::new(), false);
    let most = device.threadgroup_memory() / 1024 * 1024;
    let parts = [
        ("nothing", 0, 0),
        ("an eighth that all read", most / 8, 0),
        ("a quarter that all read", most / 4, 0),
        ("half that all read", most / 2, 0),
        ("a quarter of its own", 0, most / 4),
        ("half of its own", 0, most / 2),
    ];
    let parts = parts.map(|(what, common, own)| (what.to_owned(), Relay { common, own, rounds: 1 }));
    let blocks =
        [("qkv", 4608 * 112), ("output", 3584 * 112), ("gate and up", 37888 * 112), ("down", 3584 * 592)];
    let matrices = [("Q4_0", 18), ("Q8_0", 34)].into_iter().flat_map(|(dtype, bytes)| {
        blocks.map(|(what, blocks): (_, usize)| {
            let rounds = (blocks * bytes).div_ceil(device.cores() * PIECE);
            (format!("a layer's {what} of {dtype}"), Relay { common: 0, own: PIECE, rounds })
        })
    });
    for (what, relay) in parts.into_iter().chain(matrices) {
        let name = format!("relay: {what}");
        if !wanted(&name) {
            continue;
        }
        let time = backend.relay(relay).expect("a measurement");
        println!(
            "{name:36} {:24} {:>10.2} ({} bytes a core)",
            "relay",
            time.as_secs_f64() * 1e6,
            relay.common + relay.own * relay.rounds
        );
    }
}
