//! A plan as text.

use std::fmt::Write;

use metallic_core::plan::{ArgPlan, Holds, LaunchPlan, Number, OpPlan, Outcome, ProviderPlan};
use metallic_core::{NodeId, OpClass};

use super::table::{Align, Table, counted, grid, grouped, short, tokens};
use super::{LayerGroup, Plan, Shown};

impl Plan {
    /// The plan as text: totals and fusion always, and of the layers that are alike the first one, unless all are asked for.
    pub fn text(&self, shown: Shown) -> String {
        let mut text = self.headline();
        text += &self.fusion_text();
        if shown.layer.is_none() {
            text += &self.section("outside of layers", None);
        }
        for (first, title) in self.shown_layers(shown) {
            text += &self.section(&title, Some(first));
        }
        text += &self.weights_text(shown);
        text + &self.totals_text()
    }

    /// The layers to be shown, each with its title.
    fn shown_layers(&self, shown: Shown) -> Vec<(u32, String)> {
        match shown {
            Shown { layer: Some(layer), .. } => vec![(layer, format!("layer {layer}"))],
            Shown { all: true, .. } => {
                let all = (0..self.layer_count()).filter_map(|layer| u32::try_from(layer).ok());
                all.map(|layer| (layer, format!("layer {layer}"))).collect()
            }
            Shown { .. } => {
                let title = |group: &LayerGroup| match &group.like[..] {
                    [] => format!("layer {}", group.first),
                    like => {
                        format!("layer {} (× {}: {} are like it)", group.first, like.len() + 1, ranges(like))
                    }
                };
                self.layer_groups().iter().map(|group| (group.first, title(group))).collect()
            }
        }
    }

    fn headline(&self) -> String {
        let planned_as = self.planned_as.as_ref().map(|name| format!(", planned as for {name}"));
        let result = if self.step.chooses { "the next token is chosen" } else { "logits come back" };
        format!(
            "{} on {} ({}){}\na step of {} after {}; keys and values as {}; {result}\n",
            self.model,
            self.device.kind,
            self.device.name,
            planned_as.unwrap_or_default(),
            tokens(self.step.tokens),
            self.step.depth,
            self.kv
        )
    }

    fn fusion_text(&self) -> String {
        let (before, fused) = (&self.program.before, &self.program.fused);
        let computed = |nodes: &[metallic_core::Node]| nodes.iter().filter(|n| !n.op.is_source()).count();
        let dropped = fused.dropped(before.nodes().len());
        let unread = dropped.iter().filter(|id| !before.node(**id).op.is_source()).count();
        let mut text = format!(
            "\nFUSION: {} operations become {}; {unread} that nobody reads are dropped\n",
            computed(before.nodes()),
            computed(fused.graph.nodes())
        );
        let mut table = Table::new([
            ("RULE", Align::Left),
            ("TIMES", Align::Right),
            ("OPS", Align::Right),
            ("MAKES", Align::Left),
            ("OF", Align::Left),
        ]);
        for (rule, nodes) in self.rules() {
            let parts = nodes.iter().flat_map(|id| &fused.origins[id.0].parts);
            let made: Vec<&str> = nodes.iter().map(|id| fused.graph.node(*id).op.name()).collect();
            let first = fused.origins[nodes[0].0].parts.iter().map(|id| before.node(*id).op.name());
            let uniform = nodes.iter().all(|id| self.parts_of(*id) == self.parts_of(nodes[0]));
            let of = counted(first) + if uniform { "" } else { ", and others" };
            let times = nodes.len().to_string();
            table.row([rule.to_owned(), times, parts.count().to_string(), once(&made), of]);
        }
        text += &table.text(2);
        text
    }

    /// Every rule that made nodes, with these.
    pub(super) fn rules(&self) -> Vec<(&'static str, Vec<NodeId>)> {
        let mut rules: Vec<(&'static str, Vec<NodeId>)> = Vec::new();
        for (index, origin) in self.program.fused.origins.iter().enumerate() {
            let Some(rule) = origin.rule else { continue };
            match rules.iter_mut().find(|(known, _)| *known == rule) {
                Some((_, nodes)) => nodes.push(NodeId(index)),
                None => rules.push((rule, vec![NodeId(index)])),
            }
        }
        rules
    }

    /// What a node is made of, by name.
    pub(super) fn parts_of(&self, node: NodeId) -> Vec<&'static str> {
        let parts = self.program.fused.origins[node.0].parts.iter();
        parts.map(|part| self.program.before.node(*part).op.name()).collect()
    }

    fn section(&self, title: &str, layer: Option<u32>) -> String {
        let ops: Vec<&OpPlan> = self.ops(layer).collect();
        if ops.is_empty() {
            return String::new();
        }
        let mut text = format!("\n{}\n", title.to_uppercase());
        text += &self.launch_table(&ops).text(2);
        for op in ops {
            text += &self.details(op);
        }
        text
    }

    fn launch_table(&self, ops: &[&OpPlan]) -> Table {
        let mut table = Table::new([
            ("NODE", Align::Left),
            ("OP", Align::Left),
            ("WEIGHTS", Align::Left),
            ("TYPE", Align::Left),
            ("KERNEL", Align::Left),
            ("GROUPS", Align::Right),
            ("THREADS", Align::Right),
            ("MEMORY", Align::Right),
            ("READ", Align::Right),
            ("WRITTEN", Align::Right),
            ("MULTIPLY-ADDS", Align::Right),
            ("BARRIER", Align::Left),
        ]);
        for op in ops {
            let node = self.program.fused.graph.node(op.node);
            let head = [
                format!("%{}", op.node.0),
                node.op.name().to_owned(),
                self.program.fused.graph.part(op.node),
                node.ty.to_string(),
            ];
            if op.launches.is_empty() {
                let [id, name, part, ty] = head;
                let outcome = if op.outcome == Outcome::Runs { "" } else { op.outcome.name() };
                let none = || "-".to_owned();
                let rest = [outcome.to_owned(), none(), none(), none(), none(), none(), none()];
                let [a, b, c, d, e, f, g] = rest;
                table.row([id, name, part, ty, a, b, c, d, e, f, g, String::new()]);
                continue;
            }
            for (index, launch) in op.launches.iter().enumerate() {
                // What stands once for all its launches is said once.
                let [id, name, part, ty] = if index == 0 { head.clone() } else { Default::default() };
                table.row([
                    id,
                    name,
                    part,
                    ty,
                    launch.kernel.to_owned(),
                    grid(launch.groups),
                    grid(launch.threads),
                    grouped(u64::from(launch.threadgroup_bytes)),
                    grouped(launch.read),
                    grouped(launch.written),
                    grouped(launch.multiply_adds),
                    if launch.barrier { "before" } else { "" }.to_owned(),
                ]);
            }
        }
        table
    }

    /// Everything else of an operation, a line for each kind of thing.
    fn details(&self, op: &OpPlan) -> String {
        let mut text = format!("  %{} {}", op.node.0, self.program.fused.graph.node(op.node).op.name());
        let origin = &self.program.fused.origins[op.node.0];
        if let Some(rule) = origin.rule {
            let of = counted(self.parts_of(op.node));
            let _ = write!(text, ": {of}, by the rule `{rule}`");
        }
        text.push('\n');
        let mut line = |what: &str, value: String| {
            if !value.is_empty() {
                let _ = writeln!(text, "    {what:<10} {value}");
            }
        };
        line("takes", self.inputs_text(op.node));
        line("lies", self.place_text(op));
        line("served by", op.provider.as_ref().map_or_else(String::new, provider_text));
        for launch in &op.launches {
            line("kernel", kernel_text(launch));
            line("constants", list(launch.constants.iter().map(|(name, value)| format!("{name}={value}"))));
            line(
                "params",
                list(launch.params.iter().map(|(name, value)| format!("{name}={}", number(*value)))),
            );
            line("arguments", list(launch.args.iter().filter(|arg| arg.access != "unused").map(arg_text)));
        }
        text
    }

    fn inputs_text(&self, node: NodeId) -> String {
        let graph = &self.program.fused.graph;
        let input = |id: &NodeId| {
            let input = graph.node(*id);
            match (graph.weight(*id), input.op.class()) {
                (Some(weight), _) => format!("{} {}", short(&weight.name), input.ty),
                (None, OpClass::Source) => input.op.name().to_owned(),
                (None, OpClass::Pure | OpClass::State { .. }) => format!("%{}", id.0),
            }
        };
        list(graph.node(node).inputs.iter().map(input))
    }

    fn place_text(&self, op: &OpPlan) -> String {
        let Some(place) = self.place(op) else { return String::new() };
        let until = self.program.schedule.last_use(op.node);
        let until = until.map_or_else(|| "to the end".to_owned(), |last| format!("to %{}", last.0));
        let (start, len) = (grouped(place.start as u64), grouped(place.len() as u64));
        format!("{len} bytes at {start} of the arena, {until}")
    }

    fn weights_text(&self, shown: Shown) -> String {
        if self.program.weights.is_empty() {
            return String::new();
        }
        let mut table =
            Table::new([("FORM", Align::Left), ("WEIGHTS", Align::Right), ("BYTES", Align::Right)]);
        let mut sums: Vec<(&str, u64, u64)> = Vec::new();
        for (form, bytes) in self.program.weights.iter().flat_map(|weight| &weight.forms) {
            match sums.iter_mut().find(|(known, ..)| known == form) {
                Some((_, count, sum)) => (*count, *sum) = (*count + 1, *sum + *bytes as u64),
                None => sums.push((form, 1, *bytes as u64)),
            }
        }
        for (form, count, bytes) in sums {
            table.row([form.to_owned(), count.to_string(), grouped(bytes)]);
        }
        let mut text = format!("\nWEIGHTS on the device\n{}", table.text(2));
        if shown.all {
            let mut each =
                Table::new([("WEIGHT", Align::Left), ("FORM", Align::Left), ("BYTES", Align::Right)]);
            for weight in &self.program.weights {
                for (form, bytes) in &weight.forms {
                    each.row([weight.name.clone(), (*form).to_owned(), grouped(*bytes as u64)]);
                }
            }
            text += &each.text(2);
        }
        text
    }

    fn totals_text(&self) -> String {
        let values = self.program.schedule.arena_bytes(self.sizes());
        let Some(totals) = self.program.totals else {
            let runs = self.program.ops.iter().filter(|op| op.outcome == Outcome::Runs).count();
            return format!(
                "\nTOTALS: {runs} operations, {} bytes of intermediates; `{}` plans no launches, so bytes and multiply-adds are counted \
                 while it runs (`metallic bench --profile`)\n",
                grouped(values as u64),
                self.device.kind
            );
        };
        let mut text = format!(
            "\nTOTALS: {} dispatches, {} barriers, {} bytes read, {} written, {} multiply-adds\n  arena {} bytes, {} of them scratch; tables {} bytes\n",
            totals.dispatches,
            totals.barriers,
            grouped(totals.read),
            grouped(totals.written),
            grouped(totals.multiply_adds),
            grouped(totals.arena_bytes as u64),
            grouped(totals.scratch_bytes as u64),
            grouped(totals.table_bytes as u64),
        );
        let mut table = Table::new([
            ("OP", Align::Left),
            ("DISPATCHES", Align::Right),
            ("BYTES", Align::Right),
            ("SHARE", Align::Right),
            ("MULTIPLY-ADDS", Align::Right),
            ("SHARE", Align::Right),
        ]);
        let share = |part: u64, whole: u64| format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64);
        for sum in self.by_op() {
            table.row([
                sum.op.to_owned(),
                sum.dispatches.to_string(),
                grouped(sum.bytes),
                share(sum.bytes, totals.read + totals.written),
                grouped(sum.multiply_adds),
                share(sum.multiply_adds, totals.multiply_adds),
            ]);
        }
        text += &table.text(2);
        text
    }

    /// What the operations of each name come to, in the order of their first ones.
    pub fn by_op(&self) -> Vec<OpSum> {
        let mut sums: Vec<OpSum> = Vec::new();
        for op in &self.program.ops {
            let name = self.program.fused.graph.node(op.node).op.name();
            for launch in &op.launches {
                let found = sums.iter().position(|sum| sum.op == name);
                let at = found.unwrap_or_else(|| {
                    sums.push(OpSum { op: name, dispatches: 0, bytes: 0, multiply_adds: 0 });
                    sums.len() - 1
                });
                sums[at].dispatches += 1;
                sums[at].bytes += launch.read + launch.written;
                sums[at].multiply_adds += launch.multiply_adds;
            }
        }
        sums
    }
}

/// What operations of one name come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpSum {
    /// The operations.
    pub op: &'static str,
    /// Launches.
    pub dispatches: u64,
    /// Bytes read and written.
    pub bytes: u64,
    /// Multiplications with additions.
    pub multiply_adds: u64,
}

fn list(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

/// Names without repetition.
fn once(names: &[&str]) -> String {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(name) {
            found.push(name);
        }
    }
    found.join(", ")
}

/// `1-29, 31`.
fn ranges(layers: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for layer in layers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *layer => *last = *layer,
            _ => ranges.push((*layer, *layer)),
        }
    }
    let text = |(first, last): (u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    list(ranges.into_iter().map(text))
}

fn provider_text(provider: &ProviderPlan) -> String {
    format!("{}={}: {}", provider.kind, provider.name, provider.why)
}

fn kernel_text(launch: &LaunchPlan) -> String {
    let library = launch.library.as_ref().map(|call| format!(", by the maker's library: {call}"));
    format!("{} of {}.metal{}", launch.kernel, launch.family, library.unwrap_or_default())
}

/// A number of a launch as people read it.
pub(super) fn number(number: Number) -> String {
    match number {
        Number::Whole(n) => n.to_string(),
        Number::Float(x) => format!("{x:?}"),
    }
}

fn arg_text(arg: &ArgPlan) -> String {
    let bytes = grouped(arg.bytes as u64);
    let at = match arg.holds {
        Holds::Node(_) | Holds::Scratch(_) => format!(" at {}", grouped(arg.offset as u64)),
        Holds::Weight(_) | Holds::Table(_) | Holds::Chosen | Holds::State(_) | Holds::Nothing => {
            String::new()
        }
    };
    format!("{} {} {} ({bytes} bytes{at})", arg.name, arg.access, holds_text(&arg.holds))
}

/// What stands behind an argument.
pub(super) fn holds_text(holds: &Holds) -> String {
    match holds {
        Holds::Node(id) => format!("%{}", id.0),
        Holds::Weight(name) => short(name),
        Holds::Scratch(index) => format!("scratch {index}"),
        Holds::Table(name) => format!("table `{name}`"),
        Holds::Chosen => "chosen tokens".to_owned(),
        Holds::State(part) => (*part).to_owned(),
        Holds::Nothing => "nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_follow_each_other_are_a_range() {
        assert_eq!(ranges(&[1, 2, 3, 5, 7, 8]), "1-3, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }
}
