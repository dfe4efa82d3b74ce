//! Whether the device is as fast as its memory lets it be.

use std::time::Duration;

use metallic::{core::BackendError, device::OpenOptions, selftest};

use super::{Finding, Status, devices};
use crate::term::{Ui, size};

const AREA: &str = "speed";
/// The time it is measured for, besides making the model and finding out what the memory gives.
const TIME: Duration = Duration::from_secs(3);

/// The share of its memory's speed that a device reaches at least where nothing is wrong. Those of Apple's GPUs are reasoned, not measured.
fn expected(kind: &str) -> f64 {
    match kind {
        "cpu" => 0.45,
        "cuda" => 0.55,
        _ => 0.5,
    }
}

pub(crate) fn speed(ui: Ui) -> Finding {
    let device = devices::auto();
    let what = device.to_string();
    let _spinner = ui.spinner(&format!("how fast {what} is"));
    let measured = device
        .open_with(&OpenOptions::default())
        .and_then(|backend| Ok((backend.info().kind, selftest::speed(backend.as_ref(), TIME)?)));
    judged(&what, measured)
}

fn judged(what: &str, measured: Result<(&str, Option<selftest::Speed>), BackendError>) -> Finding {
    let (kind, speed) = match measured {
        Ok((kind, Some(speed))) => (kind, speed),
        Ok((_, None)) => {
            return Finding::new(
                AREA,
                what,
                Status::Note,
                "a share of what it reaches at best means nothing",
            );
        }
        Err(error) => {
            return Finding::new(AREA, what, Status::Failure, error.to_string())
                .advice("please report this with `metallic doctor --report`");
        }
    };
    let (share, expected) = (speed.share(), expected(kind));
    let found = format!(
        "{:.1} tokens/s of a model of {}: {:.0} % of the {:.1} GB/s that its memory gives, {:.0} % are expected",
        speed.tokens_per_second,
        size(speed.weight_bytes),
        100.0 * share,
        speed.peak / 1e9,
        100.0 * expected,
    );
    if share >= expected {
        return Finding::new(AREA, what, Status::Ok, found);
    }
    Finding::new(AREA, what, Status::Warning, found).advice(
        "close what else computes, plug the power in, and look at the environment above; else `metallic bench --ops` shows where the time goes",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_below_its_share_is_slow() {
        let speed = |bytes_per_second| selftest::Speed {
            weight_bytes: 64_000_000,
            tokens_per_second: 100.0,
            bytes_per_second,
            peak: 1e10,
        };
        let status = |bytes| judged("cpu", Ok(("cpu", Some(speed(bytes))))).status;
        assert_eq!((status(8e9), status(1e9)), (Status::Ok, Status::Warning));
        assert_eq!(judged("null", Ok(("null", None))).status, Status::Note);
    }
}
