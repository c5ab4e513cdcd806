"""The state in files: tensors in the format of torch.distributed.checkpoint (DCP), all else in `values.pt`.

      .metadata         which tensor is where: DCP's own, so `torch.distributed.checkpoint.load` reads our checkpoints
      __0_0.distcp ...  shards: tensors in the order of the state, about 64 MiB each; larger tensors are cut by rows
      values.pt         the state with a reference in place of each tensor: numbers, texts, containers

A tensor is stored once, by one writer: in data-parallel training all ranks hold the same, and one writes without asking
the others, who may be gone. Any number of ranks loads it, and DCP cuts it for those that want a part.

The same tensors in the same order give the same bytes, so what has not changed since the last checkpoint is a shard
with the same digest, which need not be copied again.

Nothing here can run code when it is read. DCP's own reader unpickles `.metadata` without looking; `read` allows the
classes of that format only, and everything else is `torch.load(weights_only=True)`.
"""

import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp

from training.checkpoint.disk import NewFile
from training.launch import torch_private

METADATA: Final = ".metadata"
VALUES: Final = "values.pt"
# A reference in `values.pt`: a dictionary with this one key, whose value is the tensor's name.
_REFERENCE: Final = "trainyard.tensor"
_MIB: Final = 2**20
SHARD_BYTES: Final = 64 * _MIB
_PLAIN: Final = frozenset({bool, int, float, str, type(None)})
# The names that `.metadata` may use; others are refused.
_HARMLESS: Final = frozenset(
    {
        ("collections", "OrderedDict"),
        ("torch", "Size"),
        ("torch", "device"),
        ("torch.serialization", "_get_layout"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        *(
            ("torch.distributed.checkpoint.metadata", name)
            for name in (
                "BytesStorageMetadata",
                "ChunkStorageMetadata",
                "Metadata",
                "MetadataIndex",
                "StorageMeta",
                "TensorProperties",
                "TensorStorageMetadata",
                "_MEM_FORMAT_ENCODING",
            )
        ),
        *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
    }
)


class ContentError(ValueError):
    """The state cannot be written or read; the message says which part of it."""


def split(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Separate the tensors of a state from the rest.

    Returns:
        The state with references in place of tensors, and the tensors by name: the keys that lead to them, with dots.

    Raises:
        ContentError: two tensors have one name, or something is no plain tensor.
    """
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            plain = value.detach()
            if type(plain) is not Tensor or plain.layout != torch.strided or plain.is_quantized:
                raise ContentError(f"{name} is a {type(value).__name__} of layout {value.layout}, not a plain tensor")
            if name in tensors:
                raise ContentError(f"two tensors of the state have the name {name}")
            tensors[name] = plain
            return {_REFERENCE: name}
        if isinstance(value, Mapping):
            if _REFERENCE in value:
                raise ContentError(f"{name}: the key {_REFERENCE!r} is reserved")
            pairs = [(key, visit(item, f"{name}.{key}" if name else str(key))) for key, item in value.items()]
            return dict(pairs)
        if type(value) in {list, tuple}:
            return type(value)(visit(item, f"{name}.{index}") for index, item in enumerate(value))
        return value

    return cast("dict[str, Any]", visit(state, "")), tensors


def join(values: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The opposite of `split`.

    Raises:
        ContentError: a tensor is missing.
    """
    if isinstance(values, dict):
        if _REFERENCE in values:
            name = values[_REFERENCE]
            if name not in tensors:
                raise ContentError(f"the tensor {name} is missing")
            return tensors[name]
        return {key: join(value, tensors) for key, value in values.items()}
    if type(values) in {list, tuple}:
        return type(values)(join(value, tensors) for value in values)
    return values


def dump_values(values: Mapping[str, Any]) -> bytes:
    """The state without its tensors as bytes that can be loaded again; that is tried, unless it is plain.

    The next world must not be the first to find out.

    Raises:
        ContentError: it could not be loaded.
    """
    buffer = io.BytesIO()
    try:
        torch.save(dict(values), buffer)
        if not _is_plain(dict(values)):  # trying takes as long as saving, and training stands still
            buffer.seek(0)
            torch.load(buffer, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ContentError(
            f"it could not be loaded: {error}\nSave tensors, numbers, texts and containers of them (for your own "
            "objects their state_dict)"
        ) from error
    return buffer.getvalue()


def _is_plain(value: Any) -> bool:
    """Whether something is made of nothing but what each `torch.load` loads."""
    if type(value) is dict:
        return all(type(key) in _PLAIN and _is_plain(item) for key, item in value.items())
    if type(value) in {list, tuple}:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def write(folder: Path, values: bytes, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Write the state's files, each synced.

    Args:
        folder: an empty folder.
        values: from `dump_values`.
        tensors: from `split`, on the CPU.

    Returns:
        Size and SHA-256 of every file.

    Raises:
        OSError: the disk refuses.
    """
    files: dict[str, dict[str, Any]] = {}
    entries: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    for name, tensor in tensors.items():
        properties = dcp.TensorProperties.create_from_tensor(tensor)
        entries[name] = dcp.TensorStorageMetadata(properties=properties, size=tensor.size(), chunks=[])
    for number, pieces in enumerate(_shards(tensors)):
        file_name = f"__0_{number}.distcp"
        with NewFile(folder / file_name) as file:
            for name, offset, piece in pieces:
                begin = file.size
                # A view of a larger tensor would be written with all of that one.
                whole = piece.untyped_storage().nbytes() == piece.numel() * piece.element_size()
                try:
                    torch.save(piece if whole else piece.clone(), cast("IO[bytes]", file))
                except RuntimeError as error:
                    raise (file.refusal or error) from error
                start = torch.Size([offset, *[0] * (piece.dim() - 1)][: piece.dim()])
                entries[name].chunks.append(dcp.ChunkStorageMetadata(offsets=start, sizes=piece.size()))
                places[dcp.MetadataIndex(name, start)] = torch_private.storage_info(file_name, begin, file.size - begin)
            files[file_name] = {"size": file.size, "sha256": file.sync()}
    paths = {name: tuple(name.split(".")) for name in entries}
    metadata = dcp.Metadata(state_dict_metadata=entries, planner_data=paths, storage_data=places)
    for file_name, data in ((METADATA, pickle.dumps(metadata)), (VALUES, values)):
        with NewFile(folder / file_name) as file:
            file.write(data)
            files[file_name] = {"size": file.size, "sha256": file.sync()}
    return files


def read(folder: Path, device: str | torch.device = "cpu", *, only: str | None = None) -> dict[str, Any]:
    """Read a state.

    Args:
        folder: of the checkpoint.
        device: where the tensors go.
        only: one key of the state; its tensors alone are read.

    Raises:
        ContentError: a file cannot be read; names it.
    """
    values = _load(folder / VALUES, (folder / VALUES).read_bytes, device)
    if only is not None:
        if only not in values:
            raise ContentError(f"{folder / VALUES} has no '{only}': it holds {', '.join(map(str, values))}")
        values = {only: values[only]}
    tensors: dict[str, Tensor] = {}
    wanted = set(_references(values))
    metadata = _metadata(folder / METADATA)
    for index, place in metadata.storage_data.items():
        if index.fqn not in wanted:
            continue
        path = folder / Path(place.relative_path).name
        piece = _load(path, _slice(path, place.offset, place.length), device)
        whole = metadata.state_dict_metadata[index.fqn]
        if not isinstance(piece, Tensor) or not isinstance(whole, dcp.TensorStorageMetadata):
            raise ContentError(f"{path} cannot be read: it holds a {type(piece).__name__} in place of {index.fqn}")
        if piece.size() == whole.size:
            tensors[index.fqn] = piece
            continue
        if index.fqn not in tensors:
            tensors[index.fqn] = torch.empty(whole.size, dtype=piece.dtype, device=device)
        tensors[index.fqn].narrow(0, index.offset[0], piece.size(0)).copy_(piece)
    try:
        return cast("dict[str, Any]", join(values, tensors))
    except ContentError as error:
        raise ContentError(f"{folder / METADATA} is damaged: {error}") from error


# Name of a tensor, at which of its rows a piece begins, and the piece.
_Piece = tuple[str, int, Tensor]


def _shards(tensors: Mapping[str, Tensor]) -> Iterator[list[_Piece]]:
    pieces: list[_Piece] = []
    size = 0
    for piece in _pieces(tensors):
        length = piece[2].numel() * piece[2].element_size()
        if pieces and size + length > SHARD_BYTES:
            yield pieces
            pieces, size = [], 0
        pieces.append(piece)
        size += length
    if pieces:
        yield pieces


def _pieces(tensors: Mapping[str, Tensor]) -> Iterator[_Piece]:
    for name, tensor in tensors.items():
        length = tensor.numel() * tensor.element_size()
        if not tensor.dim() or length <= SHARD_BYTES:
            yield name, 0, tensor
            continue
        rows = max(1, SHARD_BYTES * tensor.size(0) // length)
        for begin in range(0, tensor.size(0), rows):
            yield name, begin, tensor[begin : begin + rows]


def _references(values: Any) -> Iterator[str]:
    if isinstance(values, dict):
        if _REFERENCE in values:
            yield values[_REFERENCE]
        for value in values.values():
            yield from _references(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _references(value)


def _slice(path: Path, offset: int, length: int) -> Any:
    def data() -> bytes:
        with path.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)

    return data


def _load(path: Path, data: Any, device: str | torch.device) -> Any:
    try:
        return torch.load(io.BytesIO(data()), map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise ContentError(f"{path} cannot be read: {error}") from error


def _metadata(path: Path) -> dcp.Metadata:
    try:
        with path.open("rb") as stream:
            metadata = _Unpickler(stream).load()
    except Exception as error:  # whatever damaged bytes tell an unpickler to do
        raise ContentError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(metadata, dcp.Metadata):
        raise ContentError(f"{path} cannot be read: it holds a {type(metadata).__name__}")
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _HARMLESS:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in it")
        return super().find_class(module, name)
