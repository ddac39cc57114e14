//! ONNX: a protobuf message whose tensors are initialisers of the graph, or attributes of nodes
//! (exporters write weights as `Constant` nodes), at any depth of subgraphs and in functions.
//!
//! The wire format is decoded by the `protobuf` crate, field by field over a small window, which
//! keeps the file offset of every payload. Not supported: tensors whose data is in other files,
//! split over segments, or of strings. Tensors of training graphs are not listed.
//!
//! Field numbers are from `onnx/onnx.proto` of the ONNX project.

mod tensor;
mod wire;

use self::tensor::TensorParts;
use self::wire::{Field, Fields, Message};
use crate::error::ModelError;
use crate::model::Tensor;
use crate::source::{MAX_NAME_BYTES, MAX_TENSORS, Source};

/// Key byte of `ModelProto.ir_version`, field 1 of wire type varint. All writers put it first.
pub(crate) const IR_VERSION_TAG: u8 = 1 << 3;
/// Deepest nesting of subgraphs: `If` in `Loop` in `If`.
const MAX_NESTING: u64 = 16;
mod model_proto {
    pub(super) const GRAPH: u32 = 7;
    pub(super) const FUNCTIONS: u32 = 25;
}
mod graph_proto {
    pub(super) const NODE: u32 = 1;
    pub(super) const INITIALIZER: u32 = 5;
    pub(super) const SPARSE_INITIALIZER: u32 = 15;
}
mod sparse_proto {
    pub(super) const VALUES: u32 = 1;
    pub(super) const INDICES: u32 = 2;
}
mod function_proto {
    pub(super) const NAME: u32 = 1;
    pub(super) const NODE: u32 = 7;
}
mod node_proto {
    pub(super) const OUTPUT: u32 = 2;
    pub(super) const NAME: u32 = 3;
    pub(super) const ATTRIBUTE: u32 = 5;
}
mod attribute_proto {
    pub(super) const NAME: u32 = 1;
    pub(super) const T: u32 = 5;
    pub(super) const G: u32 = 6;
    pub(super) const TENSORS: u32 = 10;
    pub(super) const GRAPHS: u32 = 11;
    pub(super) const SPARSE_TENSOR: u32 = 22;
    pub(super) const SPARSE_TENSORS: u32 = 23;
}
/// Whether a byte can be the key of a field that follows `ir_version` in a model.
pub(crate) fn is_model_tag(byte: u8) -> bool {
    // producer_name, producer_version, domain, model_version, doc_string, graph, opset_import.
    matches!(byte, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42)
}

pub(crate) fn read(source: &mut Source<'_>) -> Result<Vec<Tensor>, ModelError> {
    let file = Message {
        start: 0,
        end: source.len(),
    };
    let mut reader = Reader {
        source,
        tensors: Vec::new(),
    };
    let mut graphs = 0;
    let mut fields = Fields::of(file);
    while let Some(field) = fields.next(reader.source)? {
        match field.number {
            model_proto::GRAPH => {
                graphs += 1;
                let graph = field.message(reader.source)?;
                reader.graph(graph, &Scope::root())?;
            }
            model_proto::FUNCTIONS => {
                let function = field.message(reader.source)?;
                reader.function(function)?;
            }
            _ => {}
        }
    }
    if graphs != 1 {
        return Err(reader.source.malformed(0, "there is not exactly one graph"));
    }
    Ok(reader.tensors)
}

/// Where a tensor stands, for its name.
struct Scope {
    prefix: String,
    nesting: u64,
}

impl Scope {
    fn root() -> Self {
        Self {
            prefix: String::new(),
            nesting: 0,
        }
    }
}

struct Reader<'s, 'f> {
    source: &'s mut Source<'f>,
    tensors: Vec<Tensor>,
}

impl Reader<'_, '_> {
    fn text(&mut self, field: &Field) -> Result<String, ModelError> {
        let range = field.message(self.source)?;
        self.source.name(range.start, range.len())
    }

    fn graph(&mut self, graph: Message, scope: &Scope) -> Result<(), ModelError> {
        self.source
            .limit(graph.start, "nesting of graphs", scope.nesting, MAX_NESTING)?;
        let mut fields = Fields::of(graph);
        while let Some(field) = fields.next(self.source)? {
            match field.number {
                graph_proto::NODE => {
                    let node = field.message(self.source)?;
                    self.node(node, scope)?;
                }
                graph_proto::INITIALIZER => {
                    let tensor = field.message(self.source)?;
                    self.tensor(tensor, &scope.prefix, None)?;
                }
                graph_proto::SPARSE_INITIALIZER => {
                    let sparse = field.message(self.source)?;
                    self.sparse(sparse, scope, None)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn function(&mut self, function: Message) -> Result<(), ModelError> {
        let mut scope = Scope {
            prefix: format!("function@{}/", function.start),
            nesting: 1,
        };
        let mut fields = Fields::of(function);
        while let Some(field) = fields.next(self.source)? {
            if field.number == function_proto::NAME {
                scope.prefix = format!("{}/", self.text(&field)?);
            }
        }
        let mut fields = Fields::of(function);
        while let Some(field) = fields.next(self.source)? {
            if field.number == function_proto::NODE {
                let node = field.message(self.source)?;
                self.node(node, &scope)?;
            }
        }
        Ok(())
    }

    fn node(&mut self, node: Message, scope: &Scope) -> Result<(), ModelError> {
        // The order of fields is free, and attributes are named after the node's first output,
        // which is unique in its graph, where a node's name may be missing.
        let (mut output, mut name) = (String::new(), String::new());
        let mut has_attributes = false;
        let mut fields = Fields::of(node);
        while let Some(field) = fields.next(self.source)? {
            match field.number {
                node_proto::OUTPUT if output.is_empty() => output = self.text(&field)?,
                node_proto::NAME => name = self.text(&field)?,
                node_proto::ATTRIBUTE => has_attributes = true,
                _ => {}
            }
        }
        if !has_attributes {
            return Ok(());
        }
        let label = match (output.is_empty(), name.is_empty()) {
            (false, _) => output,
            (true, false) => name,
            (true, true) => format!("node@{}", node.start),
        };
        let mut fields = Fields::of(node);
        while let Some(field) = fields.next(self.source)? {
            if field.number == node_proto::ATTRIBUTE {
                let attribute = field.message(self.source)?;
                self.attribute(attribute, scope, &label)?;
            }
        }
        Ok(())
    }

    fn attribute(
        &mut self,
        attribute: Message,
        scope: &Scope,
        label: &str,
    ) -> Result<(), ModelError> {
        let mut name = String::new();
        let mut fields = Fields::of(attribute);
        while let Some(field) = fields.next(self.source)? {
            if field.number == attribute_proto::NAME {
                name = self.text(&field)?;
            }
        }
        // The one tensor of a `Constant` is its output.
        let label = if name == "value" {
            label.to_owned()
        } else {
            format!("{label}.{name}")
        };
        let mut items = 0_u32;
        let mut fields = Fields::of(attribute);
        while let Some(field) = fields.next(self.source)? {
            match field.number {
                attribute_proto::T => {
                    let tensor = field.message(self.source)?;
                    self.tensor(tensor, &scope.prefix, Some(&label))?;
                }
                attribute_proto::TENSORS => {
                    let tensor = field.message(self.source)?;
                    let label = format!("{label}[{items}]");
                    self.tensor(tensor, &scope.prefix, Some(&label))?;
                    items += 1;
                }
                attribute_proto::SPARSE_TENSOR | attribute_proto::SPARSE_TENSORS => {
                    let sparse = field.message(self.source)?;
                    let label = format!("{label}[{items}]");
                    self.sparse(sparse, scope, Some(&label))?;
                    items += 1;
                }
                attribute_proto::G | attribute_proto::GRAPHS => {
                    let graph = field.message(self.source)?;
                    let prefix = format!("{}{label}[{items}]/", scope.prefix);
                    self.check_name(graph.start, &prefix)?;
                    self.graph(
                        graph,
                        &Scope {
                            prefix,
                            nesting: scope.nesting + 1,
                        },
                    )?;
                    items += 1;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A sparse tensor is its values and their indices.
    fn sparse(
        &mut self,
        sparse: Message,
        scope: &Scope,
        label: Option<&str>,
    ) -> Result<(), ModelError> {
        let indices = format!(
            "{}.indices",
            label.unwrap_or(&format!("sparse@{}", sparse.start))
        );
        let mut fields = Fields::of(sparse);
        while let Some(field) = fields.next(self.source)? {
            match field.number {
                sparse_proto::VALUES => {
                    let tensor = field.message(self.source)?;
                    self.tensor(tensor, &scope.prefix, label)?;
                }
                sparse_proto::INDICES => {
                    let tensor = field.message(self.source)?;
                    self.tensor(tensor, &scope.prefix, Some(&indices))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn check_name(&self, at: u64, name: &str) -> Result<(), ModelError> {
        let len = u64::try_from(name.len()).expect("a length fits 64 bits");
        self.source.limit(at, "name length", len, MAX_NAME_BYTES)
    }

    /// Adds a tensor, named `label` or else by its own name.
    fn tensor(
        &mut self,
        message: Message,
        prefix: &str,
        label: Option<&str>,
    ) -> Result<(), ModelError> {
        let count = u64::try_from(self.tensors.len()).expect("a length fits 64 bits") + 1;
        self.source
            .limit(message.start, "number of tensors", count, MAX_TENSORS)?;
        let own_name = self.own_name(message)?;
        let name = match (label, own_name.is_empty()) {
            (Some(label), _) => format!("{prefix}{label}"),
            (None, false) => format!("{prefix}{own_name}"),
            (None, true) => format!("{prefix}tensor@{}", message.start),
        };
        self.check_name(message.start, &name)?;
        let parts = TensorParts::read(self.source, message, &name)?;
        self.tensors.push(parts.finish(self.source, message, name)?);
        Ok(())
    }

    fn own_name(&mut self, message: Message) -> Result<String, ModelError> {
        let mut name = String::new();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next(self.source)? {
            if field.number == tensor::NAME {
                name = self.text(&field)?;
            }
        }
        Ok(name)
    }
}
