use std::collections::HashSet;

use super::*;
use crate::command::{Access, Region};
use crate::kernels::{Arg, Family, Kernel, Launch, Params, updates};

/// `None`, said aloud, where there is no clang.
fn soft(options: SoftOptions) -> Option<Soft> {
    metallic_testkit::needed(Soft::new(SoftOptions { threads: 1, ..options }))
}

fn seeded(seed: u64) -> Option<Soft> {
    soft(SoftOptions { seed, ..SoftOptions::default() })
}

fn list(commands: &[Command]) -> CommandList {
    let mut list = CommandList::new();
    for command in commands {
        list.push(*command);
    }
    list
}

#[test]
fn a_seed_gives_each_group_an_order_of_its_own_that_is_always_the_same() {
    for len in [0, 1, 2, 5, 64] {
        for seed in 0..20 {
            let found = order(len, seed, 3);
            assert_eq!(found, order(len, seed, 3));
            let all: HashSet<usize> = found.iter().copied().collect();
            assert!(found.len() == len && all == (0..len).collect(), "{len} {seed}: {found:?}");
        }
        assert_eq!(order(len, 0, 3), (0..len).collect::<Vec<_>>());
    }
    // The few seeds that tests take turn each pair around, in whichever group it stands.
    for group in 1..100 {
        let turned = (1..=5).filter(|seed| order(2, *seed, group) == [1, 0]).count();
        assert!(turned > 0, "group {group} of two is never turned around");
    }
    let orders: HashSet<Vec<usize>> = (1..100).map(|group| order(3, 7, group)).collect();
    assert_eq!(orders.len(), 6, "{orders:?}");
}

#[test]
fn commands_between_two_barriers_run_in_any_order_and_others_wait() {
    let (mut free, mut held) = (HashSet::new(), HashSet::new());
    for seed in 0..12 {
        let Some(soft) = seeded(seed) else { return };
        let [a, b] = [Region::whole(BufferId(101), 4), Region::whole(BufferId(102), 4)];
        // Neither buffer is there, so the first to run is the one that is complained of.
        let first = |commands: &[Command]| match soft
            .submit(&list(commands))
            .unwrap()
            .wait(Duration::from_secs(60))
        {
            Err(GpuError::Execution { label, .. }) => label,
            other => panic!("{other:?}"),
        };
        let (fill_a, fill_b) = (Command::Fill { to: a, value: 1 }, Command::Fill { to: b, value: 1 });
        let apart = first(&[fill_a, fill_b]);
        if seed == 0 {
            assert_eq!(apart, "buffer 101");
        }
        free.insert(apart);
        held.insert(first(&[fill_a, Command::Copy { from: b, to: a }]));
    }
    assert_eq!(free.len(), 2, "{free:?}");
    assert_eq!(held, HashSet::from(["buffer 101".to_owned()]));
}

#[test]
fn the_order_of_commands_changes_nothing() {
    const LEN: usize = 8;
    for seed in 0..20 {
        let Some(soft) = seeded(seed) else { return };
        let buffers: Vec<BufferId> = (0..4).map(|_| soft.allocate(LEN, Storage::Shared).unwrap()).collect();
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| Region::whole(buffers[i], LEN));
        let half = |region: Region, index: usize| region.slice(LEN / 2 * index, LEN / 2).unwrap();
        let commands = list(&[
            Command::Fill { to: a, value: 1 },
            Command::Fill { to: b, value: 2 },
            // Written and then read.
            Command::Copy { from: a, to: c },
            // Read and then written.
            Command::Fill { to: half(a, 0), value: 3 },
            // Written and then written.
            Command::Fill { to: half(c, 1), value: 4 },
            Command::Copy { from: half(b, 0), to: half(c, 1) },
            Command::Copy { from: a, to: d },
            Command::Fill { to: b, value: 5 },
        ]);
        soft.submit(&commands).unwrap().wait(Duration::from_secs(60)).unwrap();
        let found: Vec<[u8; LEN]> = buffers
            .iter()
            .map(|buffer| {
                let mut bytes = [0; LEN];
                soft.read(*buffer, 0, &mut bytes).unwrap();
                bytes
            })
            .collect();
        let expected =
            [[3, 3, 3, 3, 1, 1, 1, 1], [5; LEN], [1, 1, 1, 1, 2, 2, 2, 2], [3, 3, 3, 3, 1, 1, 1, 1]];
        assert_eq!(found, expected, "seed {seed}");
    }
}

#[test]
fn a_kernel_that_does_not_end_is_a_timeout() {
    const TEXT: &str =
        "kernel void spins(constant uint& n [[buffer(0)]], device atomic_uint* x [[buffer(1)]]) {
    while (atomic_load_explicit(x, memory_order_relaxed) == n) {}
}";
    const ARGS: &[Arg] = &[updates("x", 4)];
    const FAMILY: Family =
        Family { name: "spins", params: &[], uses: &[], text: TEXT, kernels: &[&[("spins", ARGS)]] };
    let limit = Duration::from_millis(50);
    let options = SoftOptions { time_limit: Some(limit), ..SoftOptions::default() };
    let Some(soft) = soft(options) else { return };
    let library = soft.library("spins", &FAMILY.source()).unwrap();
    let pipeline = soft.pipeline(library, "spins", &Constants::NONE).unwrap();
    let x = Region::whole(soft.allocate(4, Storage::Shared).unwrap(), 4);
    let launch = |n| Launch {
        kernel: Kernel { family: &FAMILY, function: "spins", constants: Constants::NONE, args: ARGS },
        params: Params::of_words([n]),
        groups: [1; 3],
        threads: [1; 3],
        threadgroup_bytes: 0,
        work: 0,
        bytewise: false,
    };
    let run = |n: u32| {
        let dispatch = Dispatch::new("spins", pipeline.id, &launch(n), &[x.bind(Access::ReadWrite)]).unwrap();
        soft.submit(&list(&[Command::Dispatch(dispatch)])).unwrap().wait(Duration::from_secs(60))
    };
    match run(0) {
        Err(GpuError::Timeout { after }) => assert!(after >= limit, "{after:?}"),
        other => panic!("{other:?}"),
    }
    run(1).unwrap();
}

#[test]
fn each_command_has_its_own_time_whatever_the_order() {
    for seed in [0, 3, 7] {
        let Some(soft) = seeded(seed) else { return };
        // The second takes a thousand times as long as the others; any order of the three will do.
        let sizes = [1 << 10, 64 << 20, 1 << 10];
        let regions = sizes.map(|len| Region::whole(soft.allocate(len, Storage::Shared).unwrap(), len));
        let commands = list(&regions.map(|to| Command::Fill { to, value: 1 }));
        let mut submission = soft.submit_timed(&commands).unwrap();
        let all = submission.wait(Duration::from_secs(60)).unwrap().unwrap();
        let times = submission.times().unwrap();
        assert_eq!(times.len(), 3);
        assert!(times[1] > times[0] && times[1] > times[2], "seed {seed}: {times:?}");
        assert!(times.iter().sum::<Duration>() <= all + Duration::from_micros(1), "{times:?} of {all:?}");
        let mut plain = soft.submit(&commands).unwrap();
        plain.wait(Duration::from_secs(60)).unwrap();
        assert_eq!(plain.times(), Ok(Vec::new()));
    }
}
