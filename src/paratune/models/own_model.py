"""Heads and model classes from outside the package (`model.head`, `model.class`).

A head is a module on the hidden states of any encoder of transformers. It is called as
`head(hidden, attention_mask=mask)`: `hidden` is (B, S, D) in the compute dtype, and `mask` is (B, S), bool, true for
tokens; it returns (B, C). Packed rows are put at the positions of padded ones before the call.

Dimensions: `B` rows, `S` padded length, `D` width, `C` outputs.
"""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from paratune.config.own_code import CLASS_KEY, HEAD_KEY, call_own_code, import_callable, own_code_errors, wrong_result
from paratune.config.section import OwnCode
from paratune.config.sections import ModelOptions
from paratune.errors import ConfigError

HEAD: Final = "own_head"
"""Name of the head in the model, and so the start of the names of its weights."""
_KEY: Final = f"{HEAD_KEY}.function"


def own_model_class(model: ModelOptions, config: Any) -> Any:
    """Return the class of a model with an own head or of an own class; None where the options name neither.

    Raises:
        ConfigError: The code cannot be imported, or does not fit this model.
    """
    if model.class_ is not None:
        return _checked_class(model.class_, config)
    if model.head is None:
        return None
    import_callable(model.head.function, _KEY)
    return _class_with_head(_encoder_class(config, model), model.head)


def has_own_head(hf: Any) -> bool:
    """Return whether the model has a head of `model.head`."""
    return hasattr(hf, HEAD)


def set_initial_values(hf: Any, new: Iterable[str], seed: int) -> None:
    """Give new weights of own code the values that the code itself sets when its objects are made.

    `from_pretrained` makes models without memory, and then initialises only layers of transformers; a parameter
    of another kind would stay uninitialised. `hf` is of a class from `own_model_class`, on the CPU; `new` names the
    parameters and buffers that were not loaded.
    """
    torch.manual_seed(seed)
    fresh = {HEAD: _make_head(hf.own_code, hf.config)} if has_own_head(hf) else {"": type(hf)(hf.config)}
    wanted = set(new)
    with torch.no_grad():
        for prefix, module in fresh.items():
            target = hf.get_submodule(prefix)
            saved, own = module.state_dict().keys(), dict(_tensors(target))
            for name, value in _tensors(module):
                if name not in saved or f"{prefix}.{name}".lstrip(".") in wanted:
                    own[name].copy_(value)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _checked_class(name: str, config: Any) -> Any:
    from transformers import PreTrainedModel

    own = import_callable(name, CLASS_KEY)
    if not (isinstance(own, type) and issubclass(own, PreTrainedModel)):
        message = (
            f"{CLASS_KEY}: {name} is {_described(own)}; name a class that inherits from transformers' PreTrainedModel"
        )
        raise ConfigError(message, code="model.class_unfit", key=CLASS_KEY, value=name)
    needed = getattr(own, "config_class", None)
    if needed is not None and not isinstance(config, needed):
        message = (
            f"{CLASS_KEY}: {name} is for models with a {needed.__name__}, and model.name has a "
            f"{type(config).__name__}; name another model or another class"
        )
        raise ConfigError(message, code="model.class_unfit", key=CLASS_KEY, value=name)
    return own


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"an object of type {type(value).__name__}"


def _encoder_class(config: Any, model: ModelOptions) -> Any:
    """Return the class for token classification: its encoder has no pooler, and returns all hidden states."""
    from transformers import AutoModelForTokenClassification

    mapping: Any = AutoModelForTokenClassification._model_mapping
    if type(config) not in mapping:
        message = (
            f"{_KEY}: transformers has no encoder with hidden states of all tokens for {config.model_type} (no class "
            f"for token classification), the type of {model.name}; name another model, or use model.class"
        )
        raise ConfigError(message, code="model.class_unfit", key=_KEY, value=config.model_type)
    return mapping[type(config)]


def _class_with_head(base: Any, own: OwnCode) -> Any:
    class ModelWithOwnHead(base):  # type: ignore[misc]
        """An encoder of transformers with a head of `model.head`."""

        own_code = own

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            encoder = self.base_model
            for name, child in list(self.named_children()):
                if child is not encoder:
                    delattr(self, name)
            self.add_module(HEAD, _make_head(own, config))
            has_cache = "use_cache" in inspect.signature(encoder.forward).parameters
            self._encoder_options = {"use_cache": False} if has_cache else {}

        def forward(
            self,
            input_ids: Tensor,
            attention_mask: Tensor | None = None,
            *,
            row_mask: Tensor | None = None,
            **inputs: Any,
        ) -> Any:
            """Return an output of transformers with `logits`, (B, C).

            Tokens are (B, S), or (1, T) in a packed batch, which has no `attention_mask`, but a `row_mask`, (B, S),
            bool: which of the hidden states that the head gets are tokens. Other inputs are those of the encoder.
            """
            from transformers.modeling_outputs import SequenceClassifierOutput

            if attention_mask is not None:
                inputs["attention_mask"] = attention_mask
            outputs = self.base_model(input_ids=input_ids, **inputs, **self._encoder_options)
            if row_mask is None:
                row_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            with own_code_errors(own.function, _KEY, method="forward"):
                logits = self.get_submodule(HEAD)(outputs[0], attention_mask=row_mask.bool())
            return SequenceClassifierOutput(logits=logits, attentions=getattr(outputs, "attentions", None))

    ModelWithOwnHead.__name__ = ModelWithOwnHead.__qualname__ = f"{base.__name__.partition('For')[0]}WithOwnHead"
    return ModelWithOwnHead


def _make_head(own: OwnCode, config: Any) -> nn.Module:
    """Return the head, made by the user's code and tried with two rows of different lengths.

    Raises:
        ConfigError: It is not a module, has layers that paratune cannot train, or returns something else than (B, C).
    """
    head = call_own_code(own, _KEY, config)
    if not isinstance(head, nn.Module):
        raise wrong_result(own.function, _KEY, _described(head), "a torch.nn.Module")
    for name, module in head.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            what = f"a module with {type(module).__name__} ({name}), which mixes the rows of a batch"
            raise wrong_result(own.function, _KEY, what, "a head that computes each row alone, such as with LayerNorm")
    for name, parameter in head.named_parameters():
        if parameter.ndim == 0:
            what = f"a module whose parameter {name} has no dimension"
            raise wrong_result(own.function, _KEY, what, "one with parameters of at least one dimension, such as (1,)")
    _try_head(head, own, config)
    return head


def _try_head(head: nn.Module, own: OwnCode, config: Any) -> None:
    example = next(head.parameters(), torch.zeros(()))
    shape, dtype, device = (2, 5, config.hidden_size), example.dtype, example.device
    mask_BS = torch.ones(shape[:2], dtype=torch.bool, device=device)
    mask_BS[1, 3:] = False
    was_training = head.training
    head.eval()
    try:
        call = f"hidden states {shape} and attention_mask {shape[:2]}"
        with own_code_errors(own.function, _KEY, call=call), torch.enable_grad():
            logits = head(torch.ones(shape, dtype=dtype, device=device), attention_mask=mask_BS)
    finally:
        head.train(was_training)
    wanted = (2, config.num_labels)
    if not (isinstance(logits, Tensor) and logits.is_floating_point() and tuple(logits.shape) == wanted):
        what = f"a tensor {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise wrong_result(own.function, _KEY, what, f"one row of config.num_labels outputs for each row: {wanted}")
    trained = {name: parameter for name, parameter in head.named_parameters() if parameter.requires_grad}
    if trained:
        used = torch.autograd.grad(logits.sum(), list(trained.values()), allow_unused=True)
        if unused := [name for name, gradient in zip(trained, used, strict=True) if gradient is None]:
            what = f"a module that does not use {', '.join(unused)}"
            raise wrong_result(own.function, _KEY, what, "one that uses all its trained parameters")
