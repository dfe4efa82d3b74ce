//! What bounds steps of many small kernels: how long one takes at best that follows another.

use metallic_gpu::Providers;

use crate::device::Device;

/// A kernel after another one, where every core copies parts of what threadgroup memory holds: of what all read, and of its own.
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
    for (what, common, own) in parts {
        let name = format!("relay: {what}");
        if !wanted(&name) {
            continue;
        }
        let time = backend.relay(common, own).expect("a measurement");
        println!(
            "{name:36} {:24} {:>10.2} ({} bytes a core)",
            "relay",
            time.as_secs_f64() * 1e6,
            common + own
        );
    }
}
