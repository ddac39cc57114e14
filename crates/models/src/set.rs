//! A model file as buffers of a pager.

use vrampager::{Buffer, Error, MemType, Pager, Submission};

use crate::model::{ModelFile, Tensor};

/// A tensor with the buffer that holds its bytes.
#[derive(Debug)]
pub struct SwapTensor {
    /// Where the bytes are in the file.
    pub tensor: Tensor,
    /// Named `model/tensor`. Clean until someone writes it: its place is given up without a copy.
    pub buffer: Buffer,
}

/// One buffer per tensor of a model file, each backed by its region of the file.
///
/// # Examples
/// Two models of 6 MiB take turns on a device with 8 MiB:
/// ```
/// use vrampager::Pager;
/// use vrampager_models::{Format, ModelFile, SwapSet, generate};
///
/// let folder = tempfile::tempdir()?;
/// let pager = Pager::builder("sim:vram=8M")?.host(8 << 20).open()?;
/// let mut sets = Vec::new();
/// for name in ["a.gguf", "b.safetensors"] {
///     let path = folder.path().join(name);
///     let format = if name == "a.gguf" { Format::Gguf } else { Format::Safetensors };
///     generate::write(format, &path, &[4 << 20, 2 << 20], 7)?;
///     sets.push(SwapSet::new(&pager, &ModelFile::open(&path)?)?);
/// }
/// sets[0].reads(&mut pager.submission())?.submit()?.wait()?;
/// assert!(sets[0].is_resident());
/// sets[1].reads(&mut pager.submission())?.submit()?.wait()?;
/// assert!(sets[1].is_resident() && !sets[0].is_resident());
///
/// let totals = pager.stats().manager.totals;
/// assert_eq!(totals.device_to_host, 0, "clean tensors are dropped, not copied");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SwapSet {
    tensors: Vec<SwapTensor>,
}

impl SwapSet {
    /// Makes a buffer for each tensor of `model` that is not empty. They take addresses, but no
    /// memory before they are used.
    ///
    /// # Errors
    /// [`Error::File`] when the file cannot be opened a second time, and what creating a buffer
    /// meets.
    pub fn new(pager: &Pager, model: &ModelFile) -> Result<Self, Error> {
        let path = model.path();
        let file = model.file().try_clone().map_err(|source| Error::File {
            path: path.to_owned(),
            action: "serve as backing",
            source,
        })?;
        let backing = pager.file(file, path)?;
        // Its stamp is newer than the layout: the file must not have changed in between.
        model.check().map_err(|changed| Error::File {
            path: path.to_owned(),
            action: "serve as backing",
            source: std::io::Error::other(changed),
        })?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy();
        let tensors = model.tensors().iter().filter(|tensor| tensor.len > 0);
        let tensors = tensors.map(|tensor| {
            let buffer = pager
                .buffer(&format!("{name}/{}", tensor.name), tensor.len)
                .backed_by(&backing, tensor.offset)
                .create()?;
            Ok(SwapTensor {
                tensor: tensor.clone(),
                buffer,
            })
        });
        Ok(Self {
            tensors: tensors.collect::<Result<_, Error>>()?,
        })
    }

    /// The tensors by increasing offset in the file.
    #[must_use]
    pub fn tensors(&self) -> &[SwapTensor] {
        &self.tensors
    }

    /// Names every buffer as read by `work`, so that the whole model is in place while it runs.
    ///
    /// # Errors
    /// [`Error::Foreign`] when `work` is for another pager.
    pub fn reads<'w, 'p>(
        &self,
        work: &'w mut Submission<'p>,
    ) -> Result<&'w mut Submission<'p>, Error> {
        for each in &self.tensors {
            work.read(&each.buffer)?;
        }
        Ok(work)
    }

    /// Whether every tensor is in VRAM at this moment.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        let mut tensors = self.tensors.iter();
        tensors.all(|each| each.buffer.residency() == Some(MemType::VRAM))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate;
    use crate::model::Format;

    #[test]
    fn empty_tensors_have_no_buffer_and_the_others_hold_their_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        generate::write(Format::Safetensors, &path, &[8, 0, 4097], 3).unwrap();
        let pager = Pager::builder("sim:vram=1M")
            .unwrap()
            .host(1 << 20)
            .open()
            .unwrap();
        let set = SwapSet::new(&pager, &ModelFile::open(&path).unwrap()).unwrap();

        let names: Vec<_> = set
            .tensors()
            .iter()
            .map(|each| each.buffer.name())
            .collect();
        assert_eq!(names, ["m.safetensors/tensor.0", "m.safetensors/tensor.2"]);
        let (mut found, mut expected) = ([0; 4097], [0; 4097]);
        set.tensors()[1].buffer.read(0, &mut found).unwrap();
        std::io::Read::read_exact(&mut generate::payload(3, 2), &mut expected).unwrap();
        assert_eq!(found, expected);
    }

    #[test]
    fn work_of_another_pager_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        generate::write(Format::Gguf, &path, &[8], 3).unwrap();
        let pager = || {
            let builder = Pager::builder("sim:vram=1M").unwrap();
            builder.host(1 << 20).open().unwrap()
        };
        let (mine, other) = (pager(), pager());
        let set = SwapSet::new(&mine, &ModelFile::open(&path).unwrap()).unwrap();

        let error = set.reads(&mut other.submission()).map(drop).unwrap_err();
        assert!(error.to_string().contains("m.gguf/tensor.0"), "{error}");
    }
}
