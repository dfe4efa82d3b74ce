use super::*;
use crate::kernels::{Arg, Constants, Family, Kernel, Params, reads, updates, writes};

const FAMILY: Family = Family { name: "t", params: &[], uses: &[], text: "", kernels: &[] };
const ARGS: &[Arg] = &[reads("x", 4), writes("out", 4), updates("state", 4)];

fn launch(args: &'static [Arg]) -> Launch {
    Launch {
        kernel: Kernel { family: &FAMILY, function: "f", constants: Constants::NONE, args },
        params: Params::of_words([0]),
        groups: [1; 3],
        threads: [1; 3],
        threadgroup_bytes: 0,
        work: 0,
        bytewise: false,
    }
}

fn dispatch(bindings: &[Binding]) -> Command {
    Command::Dispatch(Dispatch::new("t", PipelineId(0), &launch(ARGS), bindings).unwrap())
}

fn region(buffer: u32, offset: usize, len: usize) -> Region {
    Region::whole(BufferId(buffer), 1 << 10).slice(offset, len).unwrap()
}

/// Every command that does this with the region. What else they touch lies in buffers from `own` on.
fn commands(access: Access, on: Region, own: u32) -> Vec<(&'static str, Command)> {
    let other = |index: u32, len: usize| region(own + index, 0, len);
    let (x, out, state) = (other(0, 8).read(), other(1, 8).write(), other(2, 8).bind(Access::ReadWrite));
    let (to, from) = (other(3, on.len()), other(4, on.len()));
    match access {
        Access::Read => vec![
            ("a dispatch reads", dispatch(&[on.read(), out, state])),
            ("a copy reads", Command::Copy { from: on, to }),
        ],
        Access::Write => vec![
            ("a dispatch writes", dispatch(&[x, on.write(), state])),
            ("a copy writes", Command::Copy { from, to: on }),
            ("a fill writes", Command::Fill { to: on, value: 7 }),
        ],
        Access::ReadWrite => vec![
            ("a dispatch updates", dispatch(&[x, out, on.bind(Access::ReadWrite)])),
            ("a dispatch reads and writes", dispatch(&[on.read(), on.write(), state])),
            ("a copy onto itself", Command::Copy { from: on, to: on }),
        ],
        Access::Unused => vec![
            ("a dispatch passes by", dispatch(&[on.bind(Access::Unused), out, state])),
            (
                "a dispatch passes by what it could write",
                dispatch(&[x, on.bind(Access::Unused), on.bind(Access::Unused)]),
            ),
        ],
    }
}

/// Whether the second of two commands waits for the first.
fn waits(first: &Command, second: &Command) -> bool {
    let mut list = CommandList::new();
    list.push(*first);
    list.push(*second);
    list.iter().map(|(barrier, _)| barrier).eq([false, true])
}

#[test]
fn a_command_waits_for_those_that_touch_its_bytes_if_one_of_them_writes() {
    use Access::{Read, ReadWrite, Unused, Write};
    let hazards = [
        (Read, Read, false),
        (Read, Write, true),
        (Read, ReadWrite, true),
        (Read, Unused, false),
        (Write, Read, true),
        (Write, Write, true),
        (Write, ReadWrite, true),
        (Write, Unused, false),
        (ReadWrite, Read, true),
        (ReadWrite, Write, true),
        (ReadWrite, ReadWrite, true),
        (ReadWrite, Unused, false),
        (Unused, Read, false),
        (Unused, Write, false),
        (Unused, ReadWrite, false),
        (Unused, Unused, false),
    ];
    let on = region(0, 64, 32);
    let places = [
        ("the same bytes", region(0, 64, 32), true),
        ("their first bytes", region(0, 32, 36), true),
        ("their last bytes", region(0, 92, 36), true),
        ("bytes among them", region(0, 76, 4), true),
        ("them and more", region(0, 0, 256), true),
        ("bytes just before", region(0, 32, 32), false),
        ("bytes just after", region(0, 96, 32), false),
        ("the same bytes of another buffer", region(1, 64, 32), false),
    ];
    for (first, second, hazard) in hazards {
        for (where_, at, overlaps) in places {
            for (a, command) in commands(first, on, 10) {
                for (b, next) in commands(second, at, 20) {
                    assert_eq!(waits(&command, &next), hazard && overlaps, "{a}, then {b} {where_}");
                }
            }
        }
    }
}

#[test]
fn one_barrier_serves_everything_before_it() {
    let (a, b, c, d) = (region(0, 0, 8), region(1, 0, 8), region(2, 0, 8), region(3, 0, 8));
    let mut list = CommandList::new();
    let check = |list: &mut CommandList| {
        for command in [
            Command::Fill { to: a, value: 1 },
            Command::Fill { to: b, value: 2 },
            Command::Copy { from: a, to: c },
            // Written before the barrier that the copy above needs.
            Command::Copy { from: b, to: d },
            Command::Fill { to: a, value: 3 },
        ] {
            list.push(command);
        }
        let barriers: Vec<bool> = list.iter().map(|(barrier, _)| barrier).collect();
        assert_eq!(barriers, [false, false, true, false, true]);
        assert_eq!(list.groups().map(<[Command]>::len).collect::<Vec<_>>(), [2, 2, 1]);
        let grouped: Vec<_> = list.groups().flatten().map(|command| format!("{command:?}")).collect();
        let listed: Vec<_> = list.commands().iter().map(|command| format!("{command:?}")).collect();
        assert_eq!(grouped, listed);
    };
    check(&mut list);
    list.clear();
    assert_eq!((list.len(), list.groups().count()), (0, 0));
    check(&mut list);
}

#[test]
fn a_binding_says_what_the_kernel_does() {
    let on = region(0, 0, 8);
    for (index, binding, problem) in [
        (0, on.read(), None),
        (0, on.write(), Some("bound for writing, the kernel only reads it")),
        (0, on.bind(Access::ReadWrite), Some("bound for writing, the kernel only reads it")),
        (0, on.bind(Access::Unused), None),
        (1, on.read(), Some("bound for reading, the kernel writes it")),
        (1, on.write(), None),
        (1, on.bind(Access::ReadWrite), None),
        (1, on.bind(Access::Unused), None),
        (2, on.read(), Some("bound for reading, the kernel writes it")),
        (2, on.write(), Some("bound for writing alone, the kernel reads it too")),
        (2, on.bind(Access::ReadWrite), None),
        (2, on.bind(Access::Unused), None),
    ] {
        let mut bindings =
            [region(1, 0, 8).read(), region(2, 0, 8).write(), region(3, 0, 8).bind(Access::ReadWrite)];
        bindings[index] = binding;
        let made = Dispatch::new("t", PipelineId(0), &launch(ARGS), &bindings);
        match (made, problem) {
            (Ok(_), None) => {}
            (Err(GpuError::Binding { kernel, index: at, argument, problem }), Some(expected)) => {
                let names = ["x", "out", "state"];
                assert_eq!((kernel, at, argument, &*problem), ("f", index + 1, names[index], expected));
            }
            (made, _) => panic!("{binding:?} at {index}: {made:?}"),
        }
    }
}

#[test]
fn too_few_bindings_and_odd_places_are_refused() {
    let (x, out) = (region(0, 0, 8).read(), region(1, 0, 8).write());
    let error = Dispatch::new("t", PipelineId(0), &launch(ARGS), &[x, out]).unwrap_err();
    assert!(error.to_string().contains("2 bindings, the kernel takes 3"), "{error}");
    let odd = [x, out, region(2, 6, 2).bind(Access::ReadWrite)];
    let error = Dispatch::new("t", PipelineId(0), &launch(ARGS), &odd).unwrap_err();
    assert!(error.to_string().contains("byte offset 6, 4 is needed"), "{error}");
    let unused = [x, out, region(2, 6, 2).bind(Access::Unused)];
    assert!(Dispatch::new("t", PipelineId(0), &launch(ARGS), &unused).is_ok());
}
