"""From a clean configuration and weights that were looked at to a Keras model."""

from pathlib import Path

import keras

from models.archive._classes import Allowed
from models.archive._config import Clean
from models.archive._limits import Limits
from pushforward.errors import UnsafeModel


def build(clean: Clean, weights: Path, limits: Limits) -> keras.Model:
    """Build the model, and give it its weights.

    Raises:
        UnsafeModel: if Keras can't build it, or the weights belong to another.
    """
    try:
        with keras.saving.CustomObjectScope(Allowed(limits.allowed).classes):
            network = keras.saving.deserialize_keras_object(clean.config, safe_mode=True)
    except Exception as error:  # the configuration is somebody else's, and Keras raises almost anything
        raise UnsafeModel(
            f"Keras can't build the model: {_reason(error)}; save it again from a current Keras"
        ) from error
    if not isinstance(network, keras.Model):
        raise UnsafeModel("the archive holds no model, but a layer; save a keras.Sequential or keras.Model")
    if not network.built:
        raise UnsafeModel(
            "the model was never built, so the sizes of its inputs are not known; call it once, then save"
        )
    count = network.count_params()
    if count > limits.parameters:
        raise UnsafeModel(f"the model has {count} weights, the limit is {limits.parameters}; use a smaller model")
    try:
        network.load_weights(weights)
    except Exception as error:  # likewise
        raise UnsafeModel(f"the weights do not belong to this model: {_reason(error)}; save it again") from error
    return network


def _reason(error: Exception) -> str:
    # Keras puts the reason last, behind the whole configuration, and after it advice that does not apply here.
    text = (str(error) or type(error).__name__).rpartition("Exception encountered: ")[2]
    return text.splitlines()[0].partition(". ")[0][:300]
