//! What the examples share: `--device NAME`.

use metallic::Device;
use metallic::tensor::OpenDevice;

/// What any step of an example may fail with.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// Takes `--device NAME` out of the arguments (`auto` without it); the rest is returned in order.
pub(crate) fn arguments(args: impl Iterator<Item = String>) -> Result<(Device, Vec<String>), Failure> {
    let (mut device, mut rest) = (Device::Auto, Vec::new());
    let mut args = args;
    while let Some(arg) = args.next() {
        if arg == "--device" {
            device = args.next().ok_or("`--device` needs a name: cpu, for example")?.parse()?;
        } else {
            rest.push(arg);
        }
    }
    Ok((device, rest))
}

/// Opens the device the arguments name; there must be no others.
#[allow(dead_code)] // One example takes more arguments.
pub(crate) fn open(args: impl Iterator<Item = String>) -> Result<OpenDevice, Failure> {
    let (device, rest) = arguments(args)?;
    if let Some(other) = rest.first() {
        return Err(format!("`{other}` is not understood; there is `--device NAME`").into());
    }
    Ok(OpenDevice::open(device)?)
}
