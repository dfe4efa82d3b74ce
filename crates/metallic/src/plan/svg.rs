//! One layer of a plan as a picture: a box for each operation that runs, with what was fused into it, in rows by what has to come first.

use std::collections::BTreeMap;
use std::fmt::Write;

use metallic_core::NodeId;
use metallic_core::plan::{LaunchPlan, OpPlan, Outcome};

use super::table::{counted, grid, grouped, short, tokens};
use super::{NoLayer, Plan};

/// In pixels: a character of the text, a line, the space around text, between boxes, between rows, and between edges beside the boxes.
const CHAR: usize = 7;
const LINE: usize = 16;
const PAD: usize = 10;
const GAP: usize = 24;
const ROW_GAP: usize = 44;
const LANE: usize = 14;
/// Room above the boxes for the title.
const TOP: usize = 64;
/// Characters after which a list of names goes on in another line.
const WRAP: usize = 46;

const STYLE: &str = "\
svg { background: #ffffff; font: 12px ui-monospace, Menlo, Consolas, monospace; }
text { fill: #1b1f24; } .title { font-size: 15px; font-weight: bold; } .dim { fill: #57606a; } .head { font-weight: bold; }
rect { fill: #f6f8fa; stroke: #8c959f; } .fused { fill: #ddf4ff; stroke: #0969da; } .idle { stroke-dasharray: 4 3; }
.given { fill: #ffffff; stroke-dasharray: 2 2; } path { fill: none; stroke: #57606a; } marker path { fill: #57606a; stroke: none; }
@media (prefers-color-scheme: dark) {
svg { background: #0d1117; } text { fill: #e6edf3; } .dim { fill: #9198a1; } rect { fill: #161b22; stroke: #6e7681; }
.fused { fill: #0c2d4d; stroke: #4493f8; } .given { fill: #0d1117; } path { stroke: #9198a1; } marker path { fill: #9198a1; }
}";

/// A box of the picture.
struct Card {
    node: NodeId,
    /// How it is drawn: `fused`, `given`, ….
    class: &'static str,
    /// Its lines, each with its class.
    lines: Vec<(&'static str, String)>,
    /// The boxes it takes values from, by node.
    inputs: Vec<NodeId>,
    rank: usize,
    x: usize,
    y: usize,
}

impl Card {
    fn width(&self) -> usize {
        let most = self.lines.iter().map(|(_, line)| line.chars().count()).max().unwrap_or(0);
        most * CHAR + 2 * PAD
    }

    fn height(&self) -> usize {
        self.lines.len() * LINE + 2 * PAD - 4
    }

    fn middle(&self) -> usize {
        self.x + self.width() / 2
    }
}

impl Plan {
    /// A picture of a layer as an SVG file that needs nothing else; of the layer that stands for most others where none is named, and of what
    /// is outside of layers where there is none.
    pub fn svg(&self, layer: Option<u32>) -> Result<String, NoLayer> {
        layer.map_or(Ok(()), |layer| self.check_layer(layer))?;
        let layer = layer.or_else(|| self.usual_layer());
        let mut boxes = self.boxes(layer);
        rank(&mut boxes);
        let (width, height) = arrange(&mut boxes);
        let lanes = long_edges(&boxes).count();
        let width = width.max(720) + GAP + lanes * LANE;
        let mut svg = String::new();
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
             <title>{}</title>\n<style>{STYLE}</style>\n\
             <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">\
             <path d=\"M0 0 L8 4 L0 8 z\"/></marker></defs>\n",
            escaped(&self.title(layer)),
        );
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"{GAP}\" y=\"26\">{}</text>\n<text class=\"dim\" x=\"{GAP}\" y=\"46\">{}</text>",
            escaped(&self.title(layer)),
            escaped(&self.subtitle(layer)),
        );
        draw_edges(&mut svg, &boxes);
        for each in &boxes {
            draw_box(&mut svg, each);
        }
        svg += "</svg>\n";
        Ok(svg)
    }

    fn title(&self, layer: Option<u32>) -> String {
        let device = self.planned_as.as_deref().unwrap_or(&self.device.name);
        let what = layer.map_or_else(|| "outside of layers".to_owned(), |layer| format!("layer {layer}"));
        format!("{}, {what}, on {device}", self.model)
    }

    fn subtitle(&self, layer: Option<u32>) -> String {
        let launches: Vec<&LaunchPlan> = self.ops(layer).flat_map(|op| &op.launches).collect();
        let bytes: u64 = launches.iter().map(|launch| launch.read + launch.written).sum();
        let work: u64 = launches.iter().map(|launch| launch.multiply_adds).sum();
        let step = format!("a step of {} after {}", tokens(self.step.tokens), self.step.depth);
        if launches.is_empty() {
            return format!("{step}; this device plans no launches");
        }
        let (count, bytes, work) = (launches.len(), grouped(bytes), grouped(work));
        format!("{step}: {count} dispatches, {bytes} bytes, {work} multiply-adds")
    }

    /// A box for each operation of a layer, and for each value that comes from outside of it.
    fn boxes(&self, layer: Option<u32>) -> Vec<Card> {
        let graph = &self.program.fused.graph;
        let ops: Vec<&OpPlan> = self.ops(layer).collect();
        let inside = |id: NodeId| ops.iter().any(|op| op.node == id);
        let mut given: BTreeMap<NodeId, Card> = BTreeMap::new();
        let mut boxes = Vec::new();
        for op in &ops {
            let inputs: Vec<NodeId> =
                graph.node(op.node).inputs.iter().copied().filter(|id| graph.weight(*id).is_none()).collect();
            for id in inputs.iter().filter(|id| !inside(**id)) {
                given.entry(*id).or_insert_with(|| self.given(*id));
            }
            boxes.push(self.op_box(op, inputs));
        }
        given.into_values().chain(boxes).collect()
    }

    fn given(&self, node: NodeId) -> Card {
        let found = self.program.fused.graph.node(node);
        let from = self.layer(node).map(|layer| format!(" of layer {layer}")).unwrap_or_default();
        let lines =
            vec![("head", format!("%{} {}{from}", node.0, found.op.name())), ("dim", found.ty.to_string())];
        Card { node, class: "given", lines, inputs: Vec::new(), rank: 0, x: 0, y: 0 }
    }

    fn op_box(&self, op: &OpPlan, inputs: Vec<NodeId>) -> Card {
        let graph = &self.program.fused.graph;
        let (node, origin) = (graph.node(op.node), &self.program.fused.origins[op.node.0]);
        let mut lines = vec![("head", format!("%{} {}  {}", op.node.0, node.op.name(), node.ty))];
        if let Some(rule) = origin.rule {
            lines.push(("", format!("fused by {rule} from")));
            lines.extend(wrapped(&counted(self.parts_of(op.node))).into_iter().map(|line| ("", line)));
        }
        let weights = node.inputs.iter().filter_map(|id| graph.weight(*id));
        let weights: Vec<String> =
            weights.map(|weight| format!("{} {}", short(&weight.name), weight.ty.dtype)).collect();
        lines.extend(wrapped(&weights.join(", ")).into_iter().map(|line| ("dim", line)));
        if op.outcome != Outcome::Runs {
            lines.push(("dim", op.outcome.name().to_owned()));
        }
        for launch in &op.launches {
            let barrier = if launch.barrier { "after a barrier " } else { "" };
            let (groups, threads) = (grid(launch.groups), grid(launch.threads));
            lines.push(("head", format!("{barrier}{} {groups} × {threads} threads", launch.kernel)));
            let (read, written) = (grouped(launch.read), grouped(launch.written));
            lines.push(("dim", format!("{read} bytes read, {written} written")));
        }
        let class = match (op.outcome, origin.rule) {
            (Outcome::Runs, Some(_)) => "fused",
            (Outcome::Runs, None) => "own",
            (Outcome::InPlace | Outcome::Unwanted | Outcome::Empty, _) => "idle",
        };
        Card { node: op.node, class, lines, inputs, rank: 0, x: 0, y: 0 }
    }
}

/// Names of a list in lines that are not too long.
fn wrapped(list: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in list.split(", ").filter(|item| !item.is_empty()) {
        match lines.last_mut() {
            Some(line) if line.chars().count() + item.chars().count() < WRAP => {
                line.push_str(", ");
                line.push_str(item);
            }
            Some(line) => {
                line.push(',');
                lines.push(item.to_owned());
            }
            None => lines.push(item.to_owned()),
        }
    }
    lines
}

/// Gives each box its row: one after the last of those it takes values from. Boxes are in an order in which those come first.
fn rank(boxes: &mut [Card]) {
    for index in 0..boxes.len() {
        let (before, rest) = boxes.split_at_mut(index);
        let ranks =
            before.iter().filter(|other| rest[0].inputs.contains(&other.node)).map(|other| other.rank);
        let first = usize::from(rest[0].class != "given");
        rest[0].rank = ranks.max().map_or(first, |rank| rank + 1);
    }
}

/// Places rows below each other, each centred. Width and height of all.
fn arrange(boxes: &mut [Card]) -> (usize, usize) {
    let rows = boxes.iter().map(|each| each.rank + 1).max().unwrap_or(0);
    let widths = |boxes: &[Card], row: usize| {
        let own = boxes.iter().filter(|each| each.rank == row).map(|each| each.width() + GAP);
        own.sum::<usize>() + GAP
    };
    let width = (0..rows).map(|row| widths(boxes, row)).max().unwrap_or(0);
    let mut y = TOP;
    for row in 0..rows {
        let mut x = GAP + (width - widths(boxes, row)) / 2;
        let mut tallest = 0;
        for each in boxes.iter_mut().filter(|each| each.rank == row) {
            (each.x, each.y) = (x, y);
            x += each.width() + GAP;
            tallest = tallest.max(each.height());
        }
        if tallest > 0 {
            y += tallest + ROW_GAP;
        }
    }
    (width, y)
}

/// Edges, as the boxes they go from and to.
fn edges(boxes: &[Card]) -> impl Iterator<Item = (&Card, &Card)> {
    boxes.iter().flat_map(move |to| {
        let mut inputs = to.inputs.clone();
        inputs.sort_unstable();
        inputs.dedup();
        inputs.into_iter().filter_map(move |id| Some((boxes.iter().find(|from| from.node == id)?, to)))
    })
}

/// Those that pass rows by, which go beside the boxes.
fn long_edges(boxes: &[Card]) -> impl Iterator<Item = (&Card, &Card)> {
    edges(boxes).filter(|(from, to)| to.rank > from.rank + 1)
}

fn draw_edges(svg: &mut String, boxes: &[Card]) {
    let right = boxes.iter().map(|each| each.x + each.width()).max().unwrap_or(0);
    for (from, to) in edges(boxes).filter(|(from, to)| to.rank <= from.rank + 1) {
        let (x0, y0, x1, y1) = (from.middle(), from.y + from.height(), to.middle(), to.y);
        let half = y0.midpoint(y1);
        let _ = writeln!(
            svg,
            "<path d=\"M{x0} {y0} C{x0} {half} {x1} {half} {x1} {y1}\" marker-end=\"url(#arrow)\"/>"
        );
    }
    for (lane, (from, to)) in long_edges(boxes).enumerate() {
        let (x0, y0) = (from.x + from.width(), from.y + from.height() / 2);
        let (x1, y1) = (to.x + to.width(), to.y + to.height() / 2);
        let beside = right + (lane + 1) * LANE;
        let _ = writeln!(svg, "<path d=\"M{x0} {y0} H{beside} V{y1} H{x1}\" marker-end=\"url(#arrow)\"/>");
    }
}

fn draw_box(svg: &mut String, each: &Card) {
    let Card { node, class, x, y, .. } = each;
    let (width, height) = (each.width(), each.height());
    let _ = writeln!(
        svg,
        "<g id=\"node-{}\"><rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>",
        node.0
    );
    for (index, (class, line)) in each.lines.iter().enumerate() {
        let (x, y) = (x + PAD, y + PAD + (index + 1) * LINE - 6);
        let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(line));
    }
    svg.push_str("</g>\n");
}

/// Text as XML has it; what XML cannot hold becomes a question mark.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() || matches!(c, '\u{FFFE}' | '\u{FFFF}') => escaped.push('?'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_strangers_stay_text() {
        assert_eq!(escaped("a<b>&\"\u{1}\n"), "a&lt;b&gt;&amp;&quot;? ");
    }

    #[test]
    fn lists_go_on_in_another_line_between_names() {
        let list = ["first_name_that_is_long", "second_name_that_is_long", "third"].join(", ");
        assert_eq!(wrapped(&list), ["first_name_that_is_long,", "second_name_that_is_long, third"]);
        assert!(wrapped("").is_empty());
    }
}
