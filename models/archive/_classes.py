"""The classes that an archive may use: each is known to compute from its inputs and weights, and to do nothing else."""

import importlib
from collections.abc import Iterable
from typing import Any

import keras

from pushforward.errors import UnsafeModel

MODELS = frozenset(("Sequential", "Functional", "Model"))

CELLS = frozenset(("GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"))

LAYERS = CELLS | frozenset(
    (
        "Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average AveragePooling1D "
        "AveragePooling2D AveragePooling3D BatchNormalization Bidirectional CategoryEncoding Concatenate Conv1D "
        "Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Cropping1D "
        "Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D Dot Dropout ELU Embedding Flatten GRU "
        "GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
        "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity "
        "InputLayer LSTM LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum "
        "MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN ReLU RepeatVector Rescaling "
        "Reshape SeparableConv1D SeparableConv2D SimpleRNN Softmax SpatialDropout1D SpatialDropout2D SpatialDropout3D "
        "SpectralNormalization Subtract TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D "
        "ZeroPadding1D ZeroPadding2D ZeroPadding3D"
    ).split()
)

# What `x + h`, `x[:, -1]` and the masks of a functional model become.
OPERATIONS = frozenset(
    (
        "Abs Absolute Add AddN Arange Argmax Argmin Average BroadcastTo Cast Ceil Clip Concatenate Cos Cosh Cumsum "
        "Divide Dot Einsum Elu Equal Exp ExpandDims Expm1 Flip Floor FullLike Gelu GetItem Greater GreaterEqual "
        "HardSigmoid HardTanh Identity LeakyRelu Less LessEqual Log Log1p LogSigmoid LogSoftmax LogicalAnd LogicalNot "
        "LogicalOr Logsumexp Matmul Max Maximum Mean Min Minimum Mish Mod Moveaxis Multiply Negative NotEqual OneHot "
        "OnesLike Pad Power Prod Reciprocal Relu Relu6 Repeat Reshape Roll Round Rsqrt Selu Sigmoid Sign Silu Sin Sinh "
        "SoftSign Softmax Softplus Softsign Split Sqrt Square Squeeze Stack Std StopGradient Subtract Sum Swapaxes "
        "Swish Take TakeAlongAxis Tan Tanh Tensordot Tile Transpose TrueDivide Var Where ZerosLike"
    ).split()
)

INITIALIZERS = frozenset(
    (
        "Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity IdentityInitializer LecunNormal LecunUniform "
        "Ones Orthogonal OrthogonalInitializer RandomNormal RandomUniform TruncatedNormal VarianceScaling Zeros STFT"
    ).split()
)
INITIALIZER_NAMES = frozenset(
    (
        "constant glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal lecun_uniform normal one "
        "ones orthogonal random_normal random_uniform truncated_normal uniform variance_scaling zero zeros"
    ).split()
)

ACTIVATIONS = frozenset(
    (
        "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear "
        "log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus "
        "sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold"
    ).split()
)

# Why a class is refused, where there is more to say than that it is not known.
REASONS = {
    "Lambda": "it holds Python code, which is not run here; write it with Keras layers or operations",
    "TFSMLayer": "it runs a SavedModel, a program from a file; build the model from Keras layers",
    "TorchModuleWrapper": "it unpickles a PyTorch module, which can run any code; build the model from Keras layers",
    "FlaxLayer": "it holds Python code of another framework; build the model from Keras layers",
    "JaxLayer": "it holds Python code of another framework; build the model from Keras layers",
    "function": "it is a function of your own, whose code is not in the archive; use one that comes with Keras",
    "__lambda__": "it holds Python code, which is not run here; use a function that comes with Keras",
    **dict.fromkeys(
        ("StringLookup", "IntegerLookup", "TextVectorization", "Hashing", "Discretization", "HashedCrossing"),
        "it looks words up, in files if told so; do that before the request and send numbers",
    ),
}


class Allowed:
    """Classes that the settings allow besides those above, under the names that archives have for them.

    Args:
        names: as `package.module.Class`; they are imported.

    Raises:
        UnsafeModel: if one can't be imported.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.classes: dict[str, type] = {}
        for name in names:
            module, _, attribute = name.rpartition(".")
            try:
                found = getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                raise UnsafeModel(
                    f"{name} is allowed by the server's settings, but can't be imported: {error}"
                ) from error
            self.classes[keras.saving.get_registered_name(found)] = found
            self.classes[attribute] = found

    def find(self, config: dict[str, Any]) -> str | None:
        """Return the name under which a serialised object is allowed."""
        names = (config.get("registered_name"), config.get("class_name"))
        return next((n for n in names if isinstance(n, str) and n in self.classes), None)
