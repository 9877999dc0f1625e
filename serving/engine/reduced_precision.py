"""What a deployment wants in fewer bits, of the model and of its pages; refused by name where it cannot be had."""

from models.quantization import Products, QuantizationError, Recipe, at_load
from pallas_kernels.dispatch import Body, grouped_matmul_body
from serving.errors import ConfigError
from serving.settings.model import CacheDtype, ModelConfig
from sharding.chips import CHIPS, Chip

_PAGES: dict[CacheDtype, str] = {"int8": "int8", "fp8": "float8_e4m3fn"}  # by numpy's names


def recipe_of(model: ModelConfig) -> Recipe | None:
    """For weights that the checkpoint has in 16 or 32 bits; None where they stay so. Raises ConfigError."""
    if model.quantization is None:
        if model.group_size is not None:
            raise ConfigError(
                'model.group_size is for model.quantization = "int4", which is not given', param="group_size"
            )
        return None
    try:
        return at_load(model.quantization, model.group_size)
    except QuantizationError as error:
        raise ConfigError(f"model.group_size: {error}", param="group_size") from error


def products_of(model: ModelConfig, chip: Chip | None, body: Body, *, on_cpu: bool, devices: int) -> Products:
    """How the weights are multiplied there. MXFP4 stays in 4 bits where the body of the experts' products reads it.

    Raises ConfigError for activations that the chip has no products for."""
    keeps_mxfp4 = grouped_matmul_body(body).reads_mxfp4
    if model.activations is None:
        # A loop over blocks of rows that are split over devices would send them around.
        return Products(blocked=on_cpu and devices == 1, keeps_mxfp4=keeps_mxfp4)
    offered = () if chip is None else chip.eight_bit_types
    if model.activations not in offered:
        title = "a CPU" if on_cpu else "a device that weft does not know" if chip is None else chip.title
        having = [one.title for one in CHIPS.values() if model.activations in one.eight_bit_types]
        raise ConfigError(
            f'model.activations is "{model.activations}", and {title} has no such products: leave it out, or use one '
            f"of {', '.join(having)}",
            param="activations",
        )
    return Products(activations=model.activations, keeps_mxfp4=keeps_mxfp4)


def page_dtype(wanted: CacheDtype | None, own: str) -> str:
    """The dtype of the numbers in pages, which are in `own` unless the deployment says otherwise."""
    return own if wanted is None else _PAGES[wanted]
