//! Copies and fills as launches. Metal's own commands for them take multiples of four bytes alone and end the compute
//! encoder; a kernel does neither.

use super::{Constants, Family, Function, Kernel, Launch, reads, writes};
use crate::command::{Binding, Command, Region};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// `word` is the byte of a fill, four times.
    TransferParams { units: u32, word: u32 }
}

pub(crate) const FAMILY: Family = Family {
    name: "transfer",
    params: &[TransferParams::MSL],
    uses: &[],
    text: include_str!("transfer.metal"),
    kernels: &[COPIES, FILLS],
};

/// Copies of 16, 4 and 1 bytes a thread, then fills.
const COPIES: &[Function] = &[
    ("transfer_copy_u32x4", &[reads("from", 16), writes("to", 16)]),
    ("transfer_copy_u32", &[reads("from", 4), writes("to", 4)]),
    ("transfer_copy_u8", &[reads("from", 1), writes("to", 1)]),
];
const FILLS: &[Function] = &[
    ("transfer_fill_u32x4", &[writes("to", 16)]),
    ("transfer_fill_u32", &[writes("to", 4)]),
    ("transfer_fill_u8", &[writes("to", 1)]),
];

/// Bytes of a unit, in the order of the kernels.
const UNITS: [usize; 3] = [16, 4, 1];

/// Bytes of one launch at most: units fit 32 bits.
const PIECE: usize = 1 << 30;

/// One launch of a copy or a fill.
#[derive(Clone, Debug)]
pub(crate) struct Transfer {
    pub(crate) launch: Launch,
    pub(crate) bindings: Vec<Binding>,
}

/// The launches of a copy or a fill; nothing for a dispatch, which is one already, and for no bytes.
pub(crate) fn plan(command: &Command, limits: &Limits) -> Result<Vec<Transfer>, GpuError> {
    let (from, to, value) = match command {
        Command::Dispatch(_) | Command::Gemm { .. } | Command::Graph { .. } => return Ok(Vec::new()),
        Command::Copy { from, to } => (Some(*from), *to, 0),
        Command::Fill { to, value } => (None, *to, *value),
    };
    if let Some(from) = from {
        let refused = |reason: String| GpuError::execution("copy", reason);
        if from.len() != to.len() {
            return Err(refused(format!("{} bytes into {}", from.len(), to.len())));
        }
        let apart = from.offset() + from.len() <= to.offset() || to.offset() + to.len() <= from.offset();
        if from.buffer() == to.buffer() && !apart && !to.is_empty() {
            let text = format!("{} bytes from {} to {} overlap", to.len(), from.offset(), to.offset());
            return Err(refused(text));
        }
    }
    let piece = |start: usize| {
        let len = PIECE.min(to.len() - start);
        let from = from.map(|from| from.slice(start, len)).transpose()?;
        Ok(one(from, to.slice(start, len)?, value, limits))
    };
    (0..to.len()).step_by(PIECE).map(piece).collect()
}

fn one(from: Option<Region>, to: Region, value: u8, limits: &Limits) -> Transfer {
    let fits = |unit: &usize| {
        let places = [from.map_or(0, |f| f.offset()), to.offset(), to.len()];
        places.iter().all(|n| n.is_multiple_of(*unit))
    };
    let width = UNITS.iter().position(fits).unwrap_or(UNITS.len() - 1);
    let (function, args) = if from.is_some() { COPIES[width] } else { FILLS[width] };
    let units = (to.len() / UNITS[width]) as u32;
    let params = TransferParams { units, word: u32::from_ne_bytes([value; 4]) }.params();
    let kernel = Kernel { family: &FAMILY, function, constants: Constants::NONE, args };
    let launch = kernel.line(params, units, limits);
    let bindings = from.map(Region::read).into_iter().chain([to.write()]).collect();
    Transfer { launch, bindings }
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, run};
    use super::*;
    use crate::gpu::BufferId;
    use crate::threadgroup::tests::LIMITS;

    fn region(id: u32, offset: usize, len: usize) -> Region {
        Region::whole(BufferId(id), 1 << 40).slice(offset, len).unwrap()
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + 3) as u8).collect()
    }

    #[test]
    fn copies_and_fills_of_every_width_move_each_byte_once() {
        for (from, to, len, width) in [
            (16, 32, 16, 0),
            (0, 16, 5008, 0),
            (4, 8, 1036, 1),
            (16, 16, 36, 1),
            (1, 0, 1, 2),
            (0, 0, 777, 2),
        ] {
            let copy = Command::Copy { from: region(0, from, len), to: region(1, to, len) };
            let plan = plan(&copy, &LIMITS).unwrap();
            assert_eq!(
                (plan.len(), plan[0].launch.kernel.function),
                (1, COPIES[width].0),
                "{from} {to} {len}"
            );
            let data = bytes(len);
            let Some(found) = run(&plan[0].launch, &[Data::Bytes(data.clone()), Data::Room(len)]) else {
                return;
            };
            assert!(found[1] == data, "{from} {to} {len}");
            let fill = Command::Fill { to: region(1, to, len), value: 0xA5 };
            let fill = super::plan(&fill, &LIMITS).unwrap();
            let Some(found) = run(&fill[0].launch, &[Data::Room(len)]) else { return };
            assert!(found[0].iter().all(|b| *b == 0xA5), "{to} {len}");
        }
    }

    #[test]
    fn long_transfers_go_in_pieces_that_join() {
        let len = 5 * PIECE / 2;
        let copy = Command::Copy { from: region(0, 1, len), to: region(1, 16, len) };
        let plan = plan(&copy, &LIMITS).unwrap();
        let places: Vec<_> = plan
            .iter()
            .map(|t| [t.bindings[0].region, t.bindings[1].region])
            .map(|[from, to]| (from.offset(), to.offset(), to.len()))
            .collect();
        assert_eq!(
            places,
            [(1, 16, PIECE), (1 + PIECE, 16 + PIECE, PIECE), (1 + 2 * PIECE, 16 + 2 * PIECE, PIECE / 2)]
        );
        for transfer in &plan {
            assert_eq!(transfer.bindings.len(), transfer.launch.kernel.args.len());
            transfer.launch.check(&LIMITS).unwrap();
        }
    }

    #[test]
    fn overlapping_and_unequal_copies_are_refused_and_empty_ones_do_nothing() {
        let plan = |from, to| plan(&Command::Copy { from, to }, &LIMITS);
        assert!(plan(region(0, 0, 8), region(0, 4, 8)).unwrap_err().to_string().contains("overlap"));
        assert!(plan(region(0, 0, 8), region(0, 8, 8)).is_ok());
        assert!(plan(region(0, 0, 8), region(1, 0, 4)).unwrap_err().to_string().contains("8 bytes into 4"));
        assert!(plan(region(0, 3, 0), region(0, 3, 0)).unwrap().is_empty());
    }
}
